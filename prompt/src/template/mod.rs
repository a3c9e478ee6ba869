//! The model's chat template, rendered as Hugging Face `transformers` renders it with Jinja2.

pub(crate) mod context;
pub(crate) mod conversation;
mod environment;
mod failure;
pub(crate) mod loop_controls;
pub(crate) mod markup;
pub(crate) mod render;
pub(crate) mod rewrite;
pub(crate) mod script;
pub(crate) mod source;
pub(crate) mod strftime;
pub(crate) mod strip;
pub(crate) mod text;
pub(crate) mod tools;

use minijinja::machinery::parse;
use minijinja::{Environment, Value};

use crate::artefact::TemplateDefinition;
use crate::error::{ArtefactError, PromptError};
use crate::json::tree::Tree;
use crate::template::context::Context;
use crate::template::conversation::Conversation;
use crate::template::loop_controls::leave_a_block;
use crate::template::script::Script;
use environment::environment;
use failure::{describe, prompt_error};
use source::{GENERATION, as_the_engine_has_it, syntax};
use strftime::strftime;

const CHAT: &str = "chat";
const TOOLS: &str = "tools";

/// The compiled templates of a model.
pub(crate) struct Template {
    environment: Environment<'static>,
    /// What renders without the engine as far as that goes, for each.
    scripts: [Option<Box<Script>>; 2],
    special: Vec<(String, Value)>,
    content_parts: [bool; 2],
    developer: [bool; 2],
    has: [bool; 2],
    chat_only: bool,
    merges_system: bool,
}

impl Template {
    pub(crate) fn compile(definition: &TemplateDefinition) -> Result<Self, ArtefactError> {
        let mut environment = environment();
        let mut scripts = [None, None];
        let mut template = |number: usize, name: &'static str, source: &Option<String>| {
            let Some(source) = source else { return Ok((false, false)) };
            let source = as_the_engine_has_it(source);
            // What is no template the environment says below.
            if let Ok(tree) = parse(&source, name, syntax()) {
                if leave_a_block(&tree) {
                    let what = "a break or continue leaves a block that is open within its loop";
                    return Err(ArtefactError::Template(what.to_owned()));
                }
                if let Some(script) = scripts.get_mut(number) {
                    let functions: Vec<_> = environment.globals().map(|(name, _)| name).collect();
                    *script = script::compile(&tree, &functions, &definition.special).map(Box::new);
                }
            }
            let rewritten = parse(&source, name, syntax()).ok();
            let rewritten = rewritten.as_ref().and_then(rewrite::with_own_sums);
            let developer = source.contains("\"developer\"") || source.contains("'developer'");
            environment
                .add_template_owned(name, rewritten.unwrap_or(source))
                .map_err(|error| ArtefactError::Template(describe(&error)))?;
            Ok((true, developer))
        };
        let chat = template(0, CHAT, &definition.source)?;
        let tools = template(1, TOOLS, &definition.tools_source)?;
        let merges_system = [(CHAT, &definition.source), (TOOLS, &definition.tools_source)]
            .iter()
            .any(|(name, source)| match source {
                Some(source) => system_must_be_first(&environment, name, source),
                None => *name == CHAT,
            });
        Ok(Self {
            environment,
            scripts,
            merges_system,
            special: definition
                .special
                .iter()
                .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
                .collect(),
            content_parts: [definition.content_parts, definition.tools_content_parts],
            has: [chat.0, tools.0],
            chat_only: definition.chat_only,
            developer: [chat.1, tools.1],
        })
    }

    /// The number of the template for a request with or without tools.
    pub(crate) fn choose(&self, tools: bool) -> Option<usize> {
        let [chat, other] = self.has;
        if tools && other {
            Some(1)
        } else if chat && !(tools && self.chat_only) {
            Some(0)
        } else {
            None
        }
    }

    /// Whether the template goes over the parts of a message's content.
    pub(crate) fn takes_parts(&self, number: usize) -> bool {
        self.content_parts.get(number) == Some(&true)
    }

    /// Whether the template knows the role `developer`.
    pub(crate) fn knows_developer(&self, number: usize) -> bool {
        self.developer.get(number) == Some(&true)
    }

    /// Whether vLLM puts Anthropic's later system messages into the first for this template.
    pub(crate) fn merges_system(&self) -> bool {
        self.merges_system
    }

    /// Whether a system message that isn't the first is written where it stands: SGLang's own test
    /// (0.5.23, parser/template_detection.py, `detect_inline_system_support`).
    pub(crate) fn writes_later_system(&self) -> bool {
        let message = |role, content| Value::from_pairs([("role", role), ("content", content)]);
        let messages: Value = [("system", "t"), ("user", "t"), ("system", LATER), ("user", "t")]
            .into_iter()
            .map(|(role, content)| message(role, content))
            .collect();
        let variables = [("messages", messages), ("add_generation_prompt", Value::from(false))];
        let template = self.environment.get_template(CHAT);
        let text = template.and_then(|template| {
            // It knows no `generation` blocks, which came to this.
            let known = !template.source().contains(GENERATION);
            if known { template.render(Value::from_pairs(variables)) } else { Ok(String::new()) }
        });
        text.is_ok_and(|text| text.contains(LATER))
    }

    /// A special token by its name.
    pub(crate) fn special(&self, name: &str) -> Option<&str> {
        self.special.iter().find(|(known, _)| known == name)?.1.as_str()
    }

    /// Whether a template's source has a word.
    pub(crate) fn mentions(&self, word: &str) -> bool {
        self.environment.get_template(CHAT).is_ok_and(|template| template.source().contains(word))
    }

    /// The text: by the script where that can tell it, else by the engine.
    pub(crate) fn render(
        &self,
        number: usize,
        conversation: &Conversation<'_>,
        context: &Context<'_>,
    ) -> Result<String, PromptError> {
        match self.script(number).and_then(|script| script.run(conversation, context)) {
            Some(text) => Ok(text),
            None => self.interpret(number, conversation.to_value(false), context),
        }
    }

    /// The script of a template, if there is one.
    pub(crate) fn script(&self, number: usize) -> Option<&Script> {
        self.scripts.get(number)?.as_deref()
    }

    /// From now on the engine renders all.
    pub(crate) fn forget_scripts(&mut self) {
        self.scripts = [None, None];
    }

    /// The text by the engine.
    pub(crate) fn interpret(
        &self,
        number: usize,
        messages: Value,
        context: &Context<'_>,
    ) -> Result<String, PromptError> {
        let mut variables: Vec<(Value, Value)> = Vec::with_capacity(16);
        let mut add = |name: &str, value: Value| variables.push((Value::from(name), value));
        // Later ones replace earlier ones of the same name.
        for (name, value) in &self.special {
            add(name, value.clone());
        }
        for (name, value) in &context.variables {
            add(name, value.clone());
        }
        let now_unix = context.now_unix;
        add("strftime_now", Value::from_function(move |format: &str| strftime(format, now_unix)));
        add("messages", messages);
        let given = |tree: &Option<Tree<'_>>| tree.as_ref().map_or(Value::from(()), Tree::to_value);
        add("tools", given(&context.tools));
        add("documents", given(&context.documents));
        add("add_generation_prompt", Value::from(context.add_generation_prompt));
        self.environment
            .get_template(if number == 1 { TOOLS } else { CHAT })
            .and_then(|template| template.render(Value::from_pairs(variables)))
            .map_err(|error| prompt_error(&error))
    }
}

/// Whether the template fails on a system message that isn't the first, with no other variables
/// than these: vLLM's own test (vllm/entrypoints/anthropic/serving.py, 0.32).
fn system_must_be_first(environment: &Environment<'_>, name: &str, source: &str) -> bool {
    let messages: Value = ["system", "user", "system", "user"]
        .iter()
        .map(|role| Value::from_pairs([("role", *role), ("content", "t")]))
        .collect();
    let variables =
        Value::from_pairs([("messages", messages), ("add_generation_prompt", Value::from(false))]);
    // It knows no `generation` blocks.
    source.contains("endgeneration")
        || environment.get_template(name).and_then(|template| template.render(variables)).is_err()
}

/// What a template is shown to find out whether a later system message comes out.
const LATER: &str = "__warmpath_later_system__";

#[cfg(test)]
mod tests;
