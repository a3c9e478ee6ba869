//! Whether an answer is what had to come.

use serde_json::Value;
use warmpath_tests::Answer;

use crate::fleet::{NAMES, engines};
use crate::requests::{Case, Expected};

/// What the gateway knows, and which engines are there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Situation {
    /// Whether it has heard of the relay since Envoy's start; unknown while it may hear.
    pub(crate) heard: Option<bool>,
    /// An engine that is dying or dead.
    pub(crate) dead: Option<usize>,
    /// What requests that name no model are for.
    pub(crate) default_model: Option<&'static str>,
}

/// Who gave an answer that is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// An engine, which served the request.
    Engine(usize),
    /// Anybody else, or an engine that refused.
    Other,
}

/// What is wrong with an answer.
#[derive(Debug)]
pub(crate) struct Wrong {
    /// It is by an engine that should not have had the request.
    pub(crate) stranger: bool,
    /// How it differs from what had to come.
    pub(crate) what: String,
}

impl From<String> for Wrong {
    fn from(what: String) -> Self {
        Self { stranger: false, what }
    }
}

fn stranger(what: String) -> Wrong {
    Wrong { stranger: true, what }
}

/// A refusal of the gateway: status, code, and whether to come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal(u16, &'static str, bool);

const UNKNOWN: Refusal = Refusal(503, "model_unknown", true);
const NOT_FOUND: Refusal = Refusal(404, "model_not_found", false);
const NOT_IN_ZONE: Refusal = Refusal(403, "model_not_in_zone", false);

/// Who gave an answer, or what is wrong with it. `engine_at` is the number of an engine by its
/// address.
pub(crate) fn judge(
    case: &Case,
    now: Situation,
    answer: &Answer,
    engine_at: impl Fn(&str) -> Option<usize>,
) -> Result<By, Wrong> {
    // Each engine puts its address on each of its answers, and Envoy on none of its own.
    let engine = match answer.engine() {
        "" => None,
        address => {
            Some(engine_at(address).ok_or_else(|| stranger(format!("an engine {address}?")))?)
        }
    };
    let expected = match (case.expected, now.default_model) {
        (Expected::NoModel, Some(model)) => Expected::Model(model, &[200, 400, 404, 422]),
        (expected, _) => expected,
    };
    let Some(engine) = engine else {
        return by_gateway(case, now, expected, answer).map_err(Wrong::from);
    };
    let (name, served): (_, Option<&[u16]>) = match (expected, now.default_model) {
        (Expected::Model(name, served), _) => (name, Some(served)),
        (Expected::Broken(name), _) => (name, None),
        _ => return Err(stranger(format!("engine {engine} answered {}", answer.status))),
    };
    let right = engines(case.zone, name);
    if !right.contains(&engine) {
        let what = format!("engine {engine} answered for {name}, which {right:?} serve");
        return Err(stranger(what));
    }
    if let Some(served) = served.filter(|served| !served.contains(&answer.status)) {
        return Err(format!("engine {engine}: {}, not {served:?}", answer.status).into());
    }
    Ok(if answer.status == 200 { By::Engine(engine) } else { By::Other })
}

fn by_gateway(
    case: &Case,
    now: Situation,
    expected: Expected,
    answer: &Answer,
) -> Result<By, String> {
    match expected {
        Expected::Model(name, _) => refused(case, now, name, answer),
        Expected::Broken(name) => {
            refused(case, now, name, answer).or_else(|_| unreadable(now, answer))
        }
        Expected::NoModel => one_of(case, &[NOT_FOUND], answer),
        Expected::Unreadable => unreadable(now, answer),
        Expected::Encoding if answer.status == 415 => code(answer).map(|_| By::Other),
        Expected::Encoding => Err(format!("{}, not 415", answer.status)),
        Expected::List => list(case, now, answer),
        Expected::Card(name) => card(case, now, name, answer),
    }
}

/// Whether a name is known: it may be, and it has to be.
fn known(now: Situation, name: &str) -> (bool, bool) {
    let name = NAMES.iter().find(|other| other.name == name).unwrap();
    let (may, must) = (now.heard != Some(false), now.heard == Some(true));
    let relay = !name.engines.is_empty();
    (name.policy || may && relay, name.policy || must && relay)
}

/// The refusals of a request for a model, with all engines alive.
fn refusals(zone: &str, now: Situation, name: &str) -> Vec<Refusal> {
    let somewhere = !NAMES.iter().find(|other| other.name == name).unwrap().engines.is_empty();
    let mut refusals = Vec::new();
    let (may, must) = known(now, name);
    if may && engines(zone, name).is_empty() {
        refusals.push(NOT_IN_ZONE);
    }
    if !must {
        // Who has not heard of the relay can't tell what it would have said.
        refusals.extend((now.heard != Some(true)).then_some(UNKNOWN));
        refusals.extend((now.heard != Some(false) && !somewhere).then_some(NOT_FOUND));
    }
    refusals
}

fn refused(case: &Case, now: Situation, name: &str, answer: &Answer) -> Result<By, String> {
    let right = engines(case.zone, name);
    let dying = now.dead.is_some_and(|dead| right.contains(&dead));
    if dying && [502, 503, 504].contains(&answer.status) {
        return code(answer).map(|_| By::Other);
    }
    one_of(case, &refusals(case.zone, now, name), answer)
}

fn one_of(case: &Case, refusals: &[Refusal], answer: &Answer) -> Result<By, String> {
    let code = code(answer)?;
    let retry = !answer.header("retry-after").is_empty();
    let found = refusals
        .iter()
        .find(|Refusal(status, name, _)| (*status, *name) == (answer.status, &*code));
    let Some(Refusal(.., again)) = found else {
        return Err(format!("{} {code}, not {refusals:?}", answer.status));
    };
    if *again != retry {
        return Err(format!("{code}: retry-after {:?}", answer.header("retry-after")));
    }
    if answer.status == 404 {
        // It says what there is.
        let body = answer.json().map_err(|error| format!("{error:#}"))?;
        let message = body["error"]["message"].as_str().unwrap_or_default();
        for model in ["demo", "beta", "gamma"] {
            if !engines(case.zone, model).is_empty() && !message.contains(model) {
                return Err(format!("the message doesn't name {model}: {message}"));
            }
        }
    }
    Ok(By::Other)
}

fn unreadable(now: Situation, answer: &Answer) -> Result<By, String> {
    let code = code(answer)?;
    // A name that is too long for one way to read it may be a name for another.
    let unknown = now.heard != Some(true) && (answer.status, &*code) == (UNKNOWN.0, UNKNOWN.1);
    if unknown || [400, 404, 415].contains(&answer.status) {
        return Ok(By::Other);
    }
    Err(format!("{} {code}, not 400, 404 or 415", answer.status))
}

/// The code of an error in OpenAI's shape.
fn code(answer: &Answer) -> Result<String, String> {
    let body = answer.json().map_err(|error| format!("{error:#}"))?;
    let error = &body["error"];
    match (&error["code"], &error["message"], &error["type"]) {
        (Value::String(code), Value::String(_), Value::String(_)) => Ok(code.clone()),
        _ => Err(format!("{}: an error in another shape: {body}", answer.status)),
    }
}

fn list(case: &Case, now: Situation, answer: &Answer) -> Result<By, String> {
    let body = answer.json().map_err(|error| format!("{error:#}"))?;
    let cards = body["data"].as_array().cloned().unwrap_or_default();
    if answer.status != 200 || body["object"] != "list" {
        return Err(format!("{}: {body}", answer.status));
    }
    let listed =
        |name: &str| cards.iter().any(|card| card["id"] == name && card["object"] == "model");
    for name in &NAMES {
        let (may, must) = known(now, name.name);
        let here = !engines(case.zone, name.name).is_empty();
        // An alias may be left out.
        let required = must && here && name.name != "beta-alias";
        if listed(name.name) && !(may && here) || required && !listed(name.name) {
            return Err(format!("{}, listed: {}: {body}", name.name, listed(name.name)));
        }
    }
    if let Some(other) = cards.iter().find(|card| NAMES.iter().all(|name| card["id"] != name.name))
    {
        return Err(format!("lists {other}"));
    }
    Ok(By::Other)
}

fn card(case: &Case, now: Situation, name: &str, answer: &Answer) -> Result<By, String> {
    let (may, must) = known(now, name);
    let here = !engines(case.zone, name).is_empty();
    if answer.status == 200 {
        let body = answer.json().map_err(|error| format!("{error:#}"))?;
        let right = may && here && body["id"] == name && body["object"] == "model";
        return right.then_some(By::Other).ok_or_else(|| format!("200: {body}"));
    }
    if must && here && name != "beta-alias" {
        return Err(format!("{}, not 200", answer.status));
    }
    one_of(case, &[NOT_FOUND, NOT_IN_ZONE, UNKNOWN], answer)
}
