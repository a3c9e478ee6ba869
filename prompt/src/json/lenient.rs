//! Values as pydantic takes them where it isn't strict, which vLLM's models aren't
//! (vllm/entrypoints/serve/engine/protocol.py 0.32, `OpenAIBaseModel`; tried with pydantic 2.14).

use crate::json::Json;

/// `bool`: also 0 and 1, and words for them.
pub(crate) fn bool(value: &Json<'_>) -> Option<bool> {
    const TRUE: [&str; 6] = ["true", "1", "t", "yes", "y", "on"];
    const FALSE: [&str; 6] = ["false", "0", "f", "no", "n", "off"];
    match value {
        Json::Bool(value) => Some(*value),
        Json::Int(_) | Json::Float(_) => match int(value) {
            Some(0) => Some(false),
            Some(1) => Some(true),
            _ => None,
        },
        Json::Str(text) => {
            let is = |word: &&str| text.eq_ignore_ascii_case(word);
            if TRUE.iter().any(is) { Some(true) } else { FALSE.iter().any(is).then_some(false) }
        }
        _ => None,
    }
}

/// `int`, as far as it isn't negative and no larger than this: also a float without a fraction, a
/// bool, and digits.
pub(crate) fn int(value: &Json<'_>) -> Option<u32> {
    match value {
        Json::Int(number) => u32::try_from(*number).ok(),
        Json::Float(number) => float(*number),
        Json::Bool(value) => Some(u32::from(*value)),
        Json::Str(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// The integer that a float is.
pub(crate) fn float(number: f64) -> Option<u32> {
    let is = number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number);
    is.then_some(number as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What pydantic 2.14's `TypeAdapter(bool)` and `TypeAdapter(int)` say of the same.
    #[test]
    fn what_pydantic_takes_is_taken() {
        let json = |text: &str| crate::json::read::read(text.as_bytes()).unwrap();
        for (text, value) in [
            ("\"True\"", Some(true)),
            ("\"ON\"", Some(true)),
            ("\"y\"", Some(true)),
            ("1.0", Some(true)),
            ("\"off\"", Some(false)),
            ("-0.0", Some(false)),
            ("0", Some(false)),
            ("2", None),
            ("1.5", None),
            ("\"\"", None),
            ("\" true\"", None),
            ("null", None),
            ("[]", None),
        ] {
            assert_eq!(bool(&json(text)), value, "{text}");
        }
        for (text, value) in [
            ("5", Some(5)),
            ("5.0", Some(5)),
            ("\" 5 \"", Some(5)),
            ("true", Some(1)),
            ("\"05\"", Some(5)),
            ("\"+5\"", Some(5)),
            ("5.5", None),
            ("\"0x5\"", None),
            ("1e20", None),
            ("-3", None),
        ] {
            assert_eq!(int(&json(text)), value, "{text}");
        }
    }
}
