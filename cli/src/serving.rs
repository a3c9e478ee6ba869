//! Options of an engine that bear on prompts, by vLLM's names.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use warmpath_prompt::{ContentFormat, Engine, Serving};
use warmpath_relay::config::time_zone;

/// What an engine was started with.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ServingOptions {
    /// File with the chat template that is used in place of the model's
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,
    /// How content is passed to the template: auto, string or openai
    #[arg(long, value_name = "FORMAT")]
    pub(crate) chat_template_content_format: Option<ContentFormat>,
    /// Arguments of the template, a JSON object; those of requests go before
    #[arg(long, value_name = "JSON")]
    pub(crate) default_chat_template_kwargs: Option<String>,
    /// Leave tools out where `tool_choice` is none
    #[arg(long)]
    pub(crate) exclude_tools_when_tool_choice_none: bool,
    /// Time zone of dates in templates, like Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    pub(crate) time_zone: Option<String>,
}

impl ServingOptions {
    /// The same, of this engine.
    ///
    /// # Errors
    /// Where the chat template's file can't be read, the time zone is unknown, or the engine takes no
    /// such value.
    pub(crate) fn serving(&self, engine: Engine) -> anyhow::Result<Serving> {
        let chat_template = match &self.chat_template {
            None => None,
            Some(path) => {
                let read = std::fs::read_to_string(path);
                Some(read.with_context(|| format!("--chat-template {}", path.display()))?)
            }
        };
        let clock = match &self.time_zone {
            None => None,
            Some(name) => {
                let clock = time_zone::clock(name);
                Some(
                    clock
                        .with_context(|| format!("--time-zone {name} is not an IANA time zone"))?,
                )
            }
        };
        let vllms = self.exclude_tools_when_tool_choice_none
            || self.chat_template_content_format.is_some_and(|f| f != ContentFormat::Auto);
        if engine == Engine::Sglang && vllms {
            bail!(
                "--exclude-tools-when-tool-choice-none and --chat-template-content-format are \
                 vLLM's; SGLang has none like them"
            );
        }
        let serving = Serving {
            engine,
            chat_template,
            content_format: self.chat_template_content_format.unwrap_or_default(),
            template_kwargs: self.default_chat_template_kwargs.clone().unwrap_or_default(),
            excludes_tools: self.exclude_tools_when_tool_choice_none,
            clock: clock.unwrap_or_default(),
        };
        match serving.wrong_kwargs() {
            Some(wrong) => Err(anyhow!("--default-chat-template-kwargs {wrong}")),
            None => Ok(serving),
        }
    }
}
