//! Whose prompts are made: which engine, in which version, and how it was started.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use crate::clock::Clock;
use crate::json::Json;

/// An engine in a version of which it is known how it makes prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// vLLM 0.32, of which all APIs are known.
    #[default]
    Vllm,
    /// vLLM 0.23, of which chats and completions are: their token ids were equal.
    Vllm023,
    /// SGLang 0.5.23.
    Sglang,
}

/// All that are known, and by which number artefacts name them.
const KNOWN: [(Engine, &str, &str); 3] = [
    (Engine::Vllm, "vllm", "0.32"),
    (Engine::Vllm023, "vllm", "0.23"),
    (Engine::Sglang, "sglang", "0.5.23"),
];

impl Engine {
    /// By its name and version: `vllm` or `sglang`; a version as the engine prints it, with or
    /// without what comes after the part that is known, or none for the one that was known first.
    ///
    /// # Errors
    /// What is known instead.
    pub fn of(name: &str, version: Option<&str>) -> Result<Self, UnknownEngine> {
        let is = |known: &str, version: &str| {
            let rest = version.strip_prefix('v').unwrap_or(version).strip_prefix(known);
            rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
        };
        let of_name = || KNOWN.iter().filter(|(_, known, _)| *known == name);
        let found =
            of_name().find(|(_, _, known)| version.is_none_or(|version| is(known, version)));
        match found {
            Some((engine, ..)) => Ok(*engine),
            None if of_name().next().is_none() => Err(UnknownEngine::Name),
            None => {
                let known: Vec<_> = of_name().map(|(_, _, version)| *version).collect();
                Err(UnknownEngine::Version(known.join(", ")))
            }
        }
    }

    /// `vllm` or `sglang`.
    pub fn name(self) -> &'static str {
        self.known().map_or("", |(_, name, _)| name)
    }

    /// The version that is known.
    pub fn version(self) -> &'static str {
        self.known().map_or("", |(.., version)| version)
    }

    fn known(self) -> Option<(Self, &'static str, &'static str)> {
        KNOWN.into_iter().find(|(engine, ..)| *engine == self)
    }

    #[cfg(feature = "preprocess")]
    pub(crate) fn code(self) -> u64 {
        KNOWN.iter().position(|(engine, ..)| *engine == self).unwrap_or(0) as u64
    }

    pub(crate) fn of_code(code: u64) -> Option<Self> {
        let place = usize::try_from(code).ok()?;
        KNOWN.get(place).map(|(engine, ..)| *engine)
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.version())
    }
}

/// An engine, or a version of one, of which it isn't known how it makes prompts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownEngine {
    /// No engine has this name here.
    #[error("is neither vllm nor sglang")]
    Name,
    /// The versions that are known.
    #[error("is not known here, only {0}; leave it out to take it for the first")]
    Version(String),
}

/// How content is passed to a chat template (`--chat-template-content-format`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContentFormat {
    /// As the template seems to want it.
    #[default]
    Auto,
    /// As one text.
    String,
    /// As a list of parts.
    OpenAi,
}

impl FromStr for ContentFormat {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "auto" => Ok(Self::Auto),
            "string" => Ok(Self::String),
            "openai" => Ok(Self::OpenAi),
            _ => Err("is none of auto, string, openai"),
        }
    }
}

/// What of an engine and its command line bears on prompts. By default vLLM without options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Serving {
    /// The engine.
    pub engine: Engine,
    /// The source of `--chat-template`; none for the model's own.
    pub chat_template: Option<String>,
    /// `--chat-template-content-format`.
    pub content_format: ContentFormat,
    /// `--default-chat-template-kwargs`: a JSON object; empty for none.
    pub template_kwargs: String,
    /// `--exclude-tools-when-tool-choice-none`.
    pub excludes_tools: bool,
    /// Its local time.
    pub clock: Clock,
}

/// Arguments of a template that no server-side default may be: the engine sets them itself.
const NO_DEFAULTS: [&str; 10] = [
    "messages",
    "tools",
    "documents",
    "conversation",
    "chat_template",
    "tokenize",
    "strftime_now",
    "raise_exception",
    "sanitize_control_tokens",
    "return_dict",
];

impl Serving {
    /// Says what is wrong with `template_kwargs`, if something is.
    pub fn wrong_kwargs(&self) -> Option<String> {
        if self.template_kwargs.is_empty() {
            return None;
        }
        let kwargs: Json<'_> = match serde_json::from_str(&self.template_kwargs) {
            Ok(kwargs) => kwargs,
            Err(error) => return Some(format!("is not JSON: {error}")),
        };
        let Some(pairs) = kwargs.map() else { return Some("is not a JSON object".to_owned()) };
        let set = |name: &&str| pairs.iter().any(|(given, _)| given == name);
        let set = NO_DEFAULTS.iter().find(|name| set(name))?;
        Some(format!("{set:?} is set by the engine itself"))
    }
}

/// The part of a [`Serving`] that matters when a request comes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dialect {
    pub(crate) engine: Engine,
    pub(crate) template_kwargs: String,
    pub(crate) excludes_tools: bool,
    pub(crate) clock: Clock,
}

impl From<&Serving> for Dialect {
    fn from(serving: &Serving) -> Self {
        Self {
            engine: serving.engine,
            template_kwargs: serving.template_kwargs.clone(),
            excludes_tools: serving.excludes_tools,
            clock: serving.clock.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_known_by_their_versions() {
        for (name, version, engine) in [
            ("vllm", None, Ok(Engine::Vllm)),
            ("vllm", Some("0.32.0"), Ok(Engine::Vllm)),
            ("vllm", Some("v0.32.1.dev5+cpu"), Ok(Engine::Vllm)),
            ("vllm", Some("0.23.0"), Ok(Engine::Vllm023)),
            ("vllm", Some("0.320"), Err(UnknownEngine::Version("0.32, 0.23".into()))),
            ("sglang", None, Ok(Engine::Sglang)),
            ("sglang", Some("0.5.23"), Ok(Engine::Sglang)),
            ("sglang", Some("0.5.2"), Err(UnknownEngine::Version("0.5.23".into()))),
            ("tgi", None, Err(UnknownEngine::Name)),
        ] {
            assert_eq!(Engine::of(name, version), engine, "{name} {version:?}");
        }
        for (engine, ..) in KNOWN {
            assert_eq!(Engine::of_code(engine.code()), Some(engine));
            assert_eq!(Engine::of(engine.name(), Some(engine.version())), Ok(engine));
        }
        assert_eq!(Engine::of_code(3), None);
    }

    #[test]
    fn defaults_that_no_engine_takes_are_told() {
        let wrong = |kwargs: &str| {
            Serving { template_kwargs: kwargs.to_owned(), ..Serving::default() }.wrong_kwargs()
        };
        assert_eq!(wrong(""), None);
        assert_eq!(wrong(r#"{"enable_thinking": false, "x": {"y": null}}"#), None);
        assert!(wrong("[]").unwrap().contains("object"));
        assert!(wrong("{").unwrap().contains("JSON"));
        assert!(wrong(r#"{"tools": []}"#).unwrap().contains("\"tools\""));
    }
}
