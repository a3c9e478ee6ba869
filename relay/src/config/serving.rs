//! Whose prompts a model's are: its engine, and what of that's command line bears on them.

use warmpath_prompt::{ContentFormat, Engine, Serving};

use super::ConfigError;
use super::check::Checker;
use super::raw::RawModel;
use super::time_zone;

impl Checker<'_> {
    pub(super) fn serving(&self, of: &str, raw: &RawModel) -> Result<Serving, ConfigError> {
        let name = raw.engine.as_ref().map_or("vllm", |name| &name.value);
        let version = raw.engine_version.as_ref().map(|version| version.value.as_str());
        let engine = Engine::of(name, version).map_err(|unknown| {
            let (field, at) = match (&raw.engine, &raw.engine_version) {
                (Some(name), _) if Engine::of(&name.value, None).is_err() => ("engine", name),
                (_, Some(version)) => ("engine_version", version),
                (Some(name), None) => ("engine", name),
                (None, None) => ("name", &raw.name),
            };
            let what = format!("{:?} {unknown}", at.value);
            self.error(at.referenced, &format!("{of}.{field}"), what)
        })?;
        let mut serving = Serving { engine, ..Serving::default() };
        if let Some(path) = &raw.chat_template {
            let full = self.directory.join(&path.value);
            let source = std::fs::read_to_string(&full).map_err(|error| {
                let what = format!("can't read {}: {error}", full.display());
                self.error(path.referenced, &format!("{of}.chat_template"), what)
            })?;
            serving.chat_template = Some(source);
        }
        // SGLang has no such options.
        let only_vllm = |field: &str, at| {
            let what = "is an option of vLLM's; SGLang has none like it";
            Err(self.error(at, &format!("{of}.{field}"), what))
        };
        if let Some(format) = &raw.chat_template_content_format {
            if engine == Engine::Sglang && format.value != ContentFormat::Auto {
                return only_vllm("chat_template_content_format", format.referenced);
            }
            serving.content_format = format.value;
        }
        if let Some(excludes) = &raw.exclude_tools_when_tool_choice_none {
            if engine == Engine::Sglang {
                return only_vllm("exclude_tools_when_tool_choice_none", excludes.referenced);
            }
            serving.excludes_tools = excludes.value;
        }
        if let Some(kwargs) = &raw.default_chat_template_kwargs {
            // What was read is JSON.
            serving.template_kwargs = serde_json::to_string(&kwargs.value).unwrap_or_default();
            if let Some(wrong) = serving.wrong_kwargs() {
                let field = format!("{of}.default_chat_template_kwargs");
                return Err(self.error(kwargs.referenced, &field, wrong));
            }
        }
        if let Some(zone) = &raw.time_zone {
            serving.clock = time_zone::clock(&zone.value).ok_or_else(|| {
                let what = format!("{:?} is no time zone of the IANA's", zone.value);
                self.error(zone.referenced, &format!("{of}.time_zone"), what)
            })?;
        }
        Ok(serving)
    }
}
