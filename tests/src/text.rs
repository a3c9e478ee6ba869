//! Prompts to send.

/// A system prompt of a few hundred tokens that shares nothing with those of other names.
pub fn system_prompt(name: &str) -> String {
    use std::fmt::Write;
    let mut text = format!("You are the assistant of {name}. Answer in plain words.");
    for rule in 1..=24 {
        let _ = write!(
            text,
            " Rule {rule} of {name}: a reader may keep item {} for {} days, and pays {} cents for \
             each day after that.",
            rule * 7,
            rule + 10,
            rule * 5
        );
    }
    text
}
