//! `warmpath prompt`: the filter's own view of a request, for a person who asks why it misses.

use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::output;
use crate::serving::ServingOptions;
use anyhow::Context;
use clap::ValueEnum;
use warmpath_prompt::{
    Api, End, Engine, Model, ModelFiles, Prompter, Request, Tokens, preprocess_for,
};
use warmpath_routing::fingerprint::{BLOCK_TOKENS, Chain, Fingerprint, Scope};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Model directory with tokenizer.json (or tokenizer.json.gz) and tokenizer_config.json
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// The engine that serves it: vllm or sglang
    #[arg(long, value_name = "ENGINE", default_value = "vllm")]
    engine: String,
    /// Its version [default: the one that is known best]
    #[arg(long, value_name = "V")]
    engine_version: Option<String>,
    #[command(flatten)]
    options: ServingOptions,
    /// The API that the request is for [default: by the body's shape]
    #[arg(long, value_enum)]
    api: Option<ApiName>,
    /// Show only the first so many tokens, as the filter's `prefix_tokens` does
    #[arg(long, value_name = "N")]
    prefix_tokens: Option<usize>,
    /// The model version that fingerprints are rooted in
    #[arg(long, value_name = "V", default_value = "")]
    model_version: String,
    /// The LoRA adapter that fingerprints are rooted in
    #[arg(long, value_name = "A", default_value = "")]
    adapter: String,
    /// The time that the template sees, in seconds since 1970 [default: now]
    #[arg(long, value_name = "SECONDS")]
    now: Option<i64>,
    /// Write JSON
    #[arg(long)]
    json: bool,
    /// The request body; - for standard input
    #[arg(value_name = "request.json")]
    request: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum ApiName {
    Chat,
    Completions,
    Responses,
    Messages,
}

impl From<ApiName> for Api {
    fn from(name: ApiName) -> Self {
        match name {
            ApiName::Chat => Self::Chat,
            ApiName::Completions => Self::Completions,
            ApiName::Responses => Self::Responses,
            ApiName::Messages => Self::Messages,
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let body = read_body(&args.request)?;
    let report = Report::new(args, &body)?;
    let text = if args.json { report.json()? } else { report.text() };
    output::print(text)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn read_body(path: &Path) -> anyhow::Result<Vec<u8>> {
    if path.as_os_str() == "-" {
        let mut body = Vec::new();
        std::io::stdin().read_to_end(&mut body).context("can't read standard input")?;
        return Ok(body);
    }
    std::fs::read(path).with_context(|| format!("can't read the request {}", path.display()))
}

/// What there is to say about a request.
struct Report {
    api: Api,
    model: String,
    salted: bool,
    engine: Engine,
    tokenizer_hash: [u8; 32],
    root: Fingerprint,
    tokens: Tokens,
    names: Vec<Fingerprint>,
    /// Prompts in the request, of which the first is shown.
    prompts: usize,
}

impl Report {
    fn new(args: &Args, body: &[u8]) -> anyhow::Result<Self> {
        let in_request = || format!("in the request {}", args.request.display());
        let api = match args.api {
            Some(name) => name.into(),
            None => Api::of_body(body).with_context(in_request)?,
        };
        let request = Request::parse(api, body).with_context(in_request)?;
        let in_model = || format!("in the model directory {}", args.model.display());
        let files = ModelFiles::read_dir(&args.model).with_context(in_model)?;
        let engine =
            Engine::of(&args.engine, args.engine_version.as_deref()).with_context(|| {
                let version = args.engine_version.as_deref().unwrap_or_default();
                format!("--engine {} {version}", args.engine)
            })?;
        let serving = args.options.serving(engine)?;
        let artefact = preprocess_for(&files, &serving).with_context(in_model)?;
        let mut prompter = Prompter::new(Model::load(artefact.bytes).with_context(in_model)?, 0);
        let now = match args.now {
            Some(now) => now,
            None => i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())?,
        };
        let tokens = prompter
            .tokens(&request, args.prefix_tokens, now)
            .with_context(|| format!("can't work out the prompt of {}", args.request.display()))?;
        let scope = Scope {
            model_version: &args.model_version,
            tokenizer_hash: &artefact.tokenizer_hash,
            adapter: &args.adapter,
            salt: prompter.model().cache_salt(&request),
        };
        let mut names = Vec::new();
        Chain::new(&scope).push(&tokens.ids, |name| names.push(name));
        Ok(Self {
            api,
            model: request.model().to_owned(),
            salted: !prompter.model().cache_salt(&request).is_empty(),
            engine,
            tokenizer_hash: artefact.tokenizer_hash,
            root: scope.root(),
            tokens,
            names,
            prompts: request.prompts(),
        })
    }

    fn why(&self) -> &'static str {
        match self.tokens.end {
            End::Complete => "the whole prompt is known",
            End::Limit => "as many tokens as were asked for",
            End::Media => "an image, audio or other part that isn't text begins there",
            End::Word => "a word that is too long to tokenize begins there",
        }
    }

    fn json(&self) -> anyhow::Result<String> {
        let blocks: Vec<_> = self.names.iter().map(ToString::to_string).collect();
        let value = serde_json::json!({
            "api": api_name(self.api),
            "model": self.model,
            "engine": self.engine.to_string(),
            "prompts": self.prompts,
            "salted": self.salted,
            "tokenizer_hash": Fingerprint(self.tokenizer_hash).to_string(),
            "root": self.root.to_string(),
            "prompt": self.tokens.text,
            "token_ids": self.tokens.ids,
            "tokens": self.tokens.ids.len(),
            "block_tokens": BLOCK_TOKENS,
            "fingerprints": blocks,
            "end": self.tokens.end.as_str(),
            "end_reason": self.why(),
        });
        Ok(serde_json::to_string_pretty(&value)? + "\n")
    }

    fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string can't fail.
        let _ = writeln!(out, "api        {}", api_name(self.api));
        let _ =
            writeln!(out, "model      {}", if self.model.is_empty() { "-" } else { &self.model });
        let _ = writeln!(out, "engine     {}", self.engine);
        let _ = writeln!(out, "tokenizer  {}", Fingerprint(self.tokenizer_hash));
        let salted = if self.salted { " (with the request's cache_salt)" } else { "" };
        let _ = writeln!(out, "root       {}{salted}", self.root);
        if self.prompts > 1 {
            let _ = writeln!(
                out,
                "prompts    {}, of which the first is read and decides for all",
                self.prompts
            );
        }
        if let Some(text) = &self.tokens.text {
            let _ = writeln!(out, "\nprompt, {} bytes:\n{text}", text.len());
        }
        let ids = &self.tokens.ids;
        let _ = writeln!(out, "\ntokens, {}, in blocks of {BLOCK_TOKENS}:", ids.len());
        for (number, block) in ids.chunks(BLOCK_TOKENS).enumerate() {
            let name = match self.names.get(number) {
                Some(name) => name.to_string(),
                None => "- (not a full block)".to_owned(),
            };
            let ids: Vec<_> = block.iter().map(ToString::to_string).collect();
            let _ = writeln!(out, "{number:>5}  {name}\n       {}", ids.join(" "));
        }
        let _ = writeln!(
            out,
            "\nends after {} tokens, {} full blocks: {} ({})",
            ids.len(),
            self.names.len(),
            self.tokens.end.as_str(),
            self.why()
        );
        out
    }
}

fn api_name(api: Api) -> &'static str {
    match api {
        Api::Chat => "chat",
        Api::Completions => "completions",
        Api::Responses => "responses",
        Api::Messages => "messages",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demo() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/demo")
    }

    fn args(prefix_tokens: Option<usize>) -> Args {
        Args {
            model: demo(),
            engine: "vllm".into(),
            engine_version: None,
            options: ServingOptions::default(),
            api: None,
            prefix_tokens,
            model_version: "v1".into(),
            adapter: String::new(),
            now: Some(0),
            json: false,
            request: "request.json".into(),
        }
    }

    const BODY: &[u8] = br#"{"model":"demo","messages":[{"role":"user",
        "content":"Please explain step by step how this works and what it would cost."}]}"#;

    #[test]
    fn a_report_says_what_and_why() {
        let text = Report::new(&args(None), BODY).unwrap().text();
        assert!(text.contains("<|im_start|>user\nPlease explain"), "{text}");
        assert!(text.contains("complete (the whole prompt is known)"), "{text}");
        assert!(text.contains("- (not a full block)"), "{text}");
    }

    #[test]
    fn json_holds_the_first_tokens_only_when_asked() {
        let report = Report::new(&args(Some(20)), BODY).unwrap();
        let json: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
        assert_eq!(json["tokens"], 20);
        assert_eq!(json["fingerprints"].as_array().unwrap().len(), 1);
        assert_eq!(json["end"], "limit");
    }

    #[test]
    fn the_prompt_is_that_of_the_engine_as_it_was_started() {
        let body = br#"{"model":"demo","tool_choice":"none","tools":[{"type":"function",
            "function":{"name":"weather"}}],"messages":[{"role":"user",
            "content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}"#;
        let text = |change: &dyn Fn(&mut Args)| {
            let mut args = args(None);
            change(&mut args);
            Report::new(&args, body).map(|report| report.text())
        };
        let vllm = text(&|_| {}).unwrap();
        assert!(vllm.contains("a\nb") && vllm.contains("weather"), "{vllm}");
        let without =
            text(&|args| args.options.exclude_tools_when_tool_choice_none = true).unwrap();
        assert!(!without.contains("weather"), "{without}");
        let sglang = text(&|args| args.engine = "sglang".into()).unwrap();
        assert!(sglang.contains("a b") && !sglang.contains("weather"), "{sglang}");
        assert!(sglang.contains("engine     sglang 0.5.23"), "{sglang}");
        let error = text(&|args| args.engine_version = Some("0.9".into())).unwrap_err();
        assert!(format!("{error:#}").contains("0.32, 0.23"), "{error:#}");
        let error = text(&|args| args.options.time_zone = Some("Mars".into())).unwrap_err();
        assert!(format!("{error:#}").contains("--time-zone Mars"), "{error:#}");
    }

    #[test]
    fn of_several_prompts_it_says_that_the_first_is_read() {
        let body = br#"{"model":"demo","prompt":["One.","Two."]}"#;
        let text = Report::new(&args(None), body).unwrap().text();
        assert!(text.contains("prompts    2, of which the first is read"), "{text}");
        assert!(!text.contains("Two"), "{text}");
    }

    #[test]
    fn errors_name_the_place() {
        let error = Report::new(&args(None), b"{").err().unwrap();
        assert!(format!("{error:#}").starts_with("in the request request.json: "), "{error:#}");
        let mut missing = args(None);
        missing.model = "/nowhere".into();
        let error = Report::new(&missing, BODY).err().unwrap();
        assert!(format!("{error:#}").contains("/nowhere/tokenizer.json"), "{error:#}");
    }
}
