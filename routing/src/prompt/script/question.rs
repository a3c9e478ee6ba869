//! Where a conversation's last text, the *question*, goes in a prompt, and what of it matters to
//! the template: so that a prompt that differs in its question alone needs no render.
//!
//! A run that is to find this out has a value for the question of which the text is not to be had.
//! It can be written, trimmed, and asked for a few things, each of which is noted with its answer as
//! a [`Guard`]; all else ends the run. So what the run wrote is what it would write for every
//! question that answers the same.

use super::super::python::is_space;
use super::super::strftime::strftime;

/// Which ends of a question are trimmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) start: bool,
    pub(super) end: bool,
}

impl Ends {
    /// With these trimmed, too.
    pub(super) fn and(self, start: bool, end: bool) -> Self {
        Self { start: self.start || start, end: self.end || end }
    }

    fn of(self, question: &str) -> &str {
        let text = if self.start { question.trim_start_matches(is_space) } else { question };
        if self.end { text.trim_end_matches(is_space) } else { text }
    }
}

/// What may be asked of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    StartsWith,
    EndsWith,
    Contains,
}

/// What the template asked, and what the answer was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Guard {
    Question(Ask, Ends, Box<str>, bool),
    /// Of the time, by this format.
    Time(Box<str>, Box<str>),
}

impl Guard {
    fn holds(&self, question: &str, now_unix: i64) -> bool {
        match self {
            Self::Question(ask, ends, what, was) => {
                let text = ends.of(question);
                let is = match ask {
                    Ask::StartsWith => text.starts_with(&**what),
                    Ask::EndsWith => text.ends_with(&**what),
                    Ask::Contains => text.contains(&**what),
                };
                is == *was
            }
            Self::Time(format, was) => *strftime(format, now_unix) == **was,
        }
    }

    fn bytes(&self) -> usize {
        let (Self::Question(_, _, text, _) | Self::Time(text, _)) = self;
        size_of::<Self>() + 2 * text.len()
    }
}

/// What a run knows of the question, and what it has noted of it.
#[derive(Debug, Default)]
pub(super) struct Asking<'a> {
    text: &'a str,
    /// Where it was written.
    pub(super) written: Vec<(usize, Ends)>,
    guards: Vec<Guard>,
}

impl<'a> Asking<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        Self { text, ..Self::default() }
    }

    /// The answer, which is noted.
    pub(super) fn ask(&mut self, ask: Ask, ends: Ends, what: &str) -> bool {
        let guard = Guard::Question(ask, ends, what.into(), true);
        // Nothing of the question depends on the time.
        let is = guard.holds(self.text, 0);
        self.guards.push(Guard::Question(ask, ends, what.into(), is));
        is
    }

    /// The time was written so.
    pub(super) fn told_time(&mut self, format: &str, time: &str) {
        self.guards.push(Guard::Time(format.into(), time.into()));
    }

    /// What comes of the run that wrote this.
    pub(super) fn shape(self, mut written: String) -> Option<Shape> {
        let [(at, ends)] = *self.written else { return None };
        let after = written.get(at..)?.into();
        written.truncate(at);
        Some(Shape { before: written, after, ends, guards: self.guards.into() })
    }
}

/// A prompt but for its question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Shape {
    /// What comes before the question.
    pub(in super::super) before: String,
    /// What comes after it.
    pub(in super::super) after: Box<str>,
    ends: Ends,
    guards: Box<[Guard]>,
}

impl Shape {
    /// The part of a question that is in the prompt; none where the template might have written
    /// something else.
    pub(in super::super) fn put<'q>(&self, question: &'q str, now_unix: i64) -> Option<&'q str> {
        let holds = is_question(question)
            && self.guards.iter().all(|guard| guard.holds(question, now_unix));
        holds.then(|| self.ends.of(question))
    }

    /// Bytes that it takes, about.
    pub(in super::super) fn bytes(&self) -> usize {
        self.before.len() + self.after.len() + self.guards.iter().map(Guard::bytes).sum::<usize>()
    }
}

/// Whether a text can be a question: not even a trimmed one may be empty, as templates ask for that.
pub(in super::super) fn is_question(text: &str) -> bool {
    text.chars().any(|char| !is_space(char))
}
