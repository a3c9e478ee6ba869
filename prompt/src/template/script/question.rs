//! Where a conversation's last text, the *question*, goes in a prompt, and what of it matters to
//! the template: so that a prompt that differs in its question alone needs no render.
//!
//! A run that is to find this out has a value for the question of which the text is not to be had.
//! It can be written, trimmed, and asked for a few things, each of which is noted with its answer as
//! a [`Guard`]; all else ends the run. So what the run wrote is what it would write for every
//! question that answers the same.

use crate::clock::Clock;
use crate::json::print::is_space;
use crate::template::strftime::strftime;
use crate::template::strip::strip;

/// Guards of one shape, and bytes of each: published templates ask for a few names.
const MOST_GUARDS: usize = 32;
const MOST_GUARD_BYTES: usize = 512;

/// Seconds.
const DAY: i64 = 86_400;

/// Which ends of a question are trimmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) start: bool,
    pub(crate) end: bool,
}

impl Ends {
    /// With these trimmed, too.
    pub(crate) fn and(self, start: bool, end: bool) -> Self {
        Self { start: self.start || start, end: self.end || end }
    }

    fn of(self, question: &str) -> &str {
        strip(question, None, self.start, self.end)
    }
}

/// What may be asked of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    StartsWith,
    EndsWith,
    Contains,
}

impl Ask {
    fn answer(self, text: &str, what: &str) -> bool {
        match self {
            Self::StartsWith => text.starts_with(what),
            Self::EndsWith => text.ends_with(what),
            Self::Contains => text.contains(what),
        }
    }
}

/// What the template asked, and what the answer was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    Question(Ask, Ends, Box<str>, bool),
    /// Of the time, by this format.
    Time(Box<str>, Box<str>),
}

impl Guard {
    fn holds(&self, question: &str, now_unix: i64) -> bool {
        match self {
            Self::Question(ask, ends, what, was) => ask.answer(ends.of(question), what) == *was,
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
pub(crate) struct Asking<'a> {
    text: &'a str,
    /// Where it was written.
    pub(crate) written: Vec<(usize, Ends)>,
    guards: Vec<Guard>,
}

impl<'a> Asking<'a> {
    pub(crate) fn of(text: &'a str) -> Self {
        Self { text, ..Self::default() }
    }

    /// Bytes of the question.
    pub(crate) fn bytes(&self) -> usize {
        self.text.len()
    }

    /// The answer, which is noted; none where there is too much to be noted.
    pub(crate) fn ask(&mut self, ask: Ask, ends: Ends, what: &str) -> Option<bool> {
        let known = self.guards.iter().find_map(|guard| match guard {
            Guard::Question(asked, of, text, was)
                if (*asked, *of, &**text) == (ask, ends, what) =>
            {
                Some(*was)
            }
            _ => None,
        });
        if known.is_some() {
            return known;
        }
        let is = ask.answer(ends.of(self.text), what);
        self.note(Guard::Question(ask, ends, what.into(), is)).then_some(is)
    }

    /// The time was written so. Says whether that holds for a day: else it isn't worth noting.
    pub(crate) fn told_time(&mut self, format: &str, time: &str, now_unix: i64) -> bool {
        let day = strftime(format, now_unix - now_unix.rem_euclid(DAY));
        let guard = Guard::Time(format.into(), time.into());
        day == time && (self.guards.contains(&guard) || self.note(guard))
    }

    fn note(&mut self, guard: Guard) -> bool {
        let fits = self.guards.len() < MOST_GUARDS && guard.bytes() <= MOST_GUARD_BYTES;
        if fits {
            self.guards.push(guard);
        }
        fits
    }

    /// What comes of the run that wrote this.
    pub(crate) fn shape(self, mut written: String) -> Option<Shape> {
        let [(at, ends)] = *self.written else { return None };
        let after = written.get(at..)?.into();
        written.truncate(at);
        let clock = Clock::default();
        Some(Shape { before: written, after, ends, guards: self.guards.into(), clock })
    }
}

/// A prompt but for its question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// What comes before the question.
    pub(crate) before: String,
    /// What comes after it.
    pub(crate) after: Box<str>,
    ends: Ends,
    guards: Box<[Guard]>,
    /// Whose local time the guards speak of.
    pub(crate) clock: Clock,
}

impl Shape {
    /// Whether the prompt is of this shape with the question; else the template might have written
    /// something else.
    pub(crate) fn takes(&self, question: &str, now_unix: i64) -> bool {
        let now = self.clock.local(now_unix);
        is_question(question) && self.guards.iter().all(|guard| guard.holds(question, now))
    }

    /// The part of a question that is in the prompt.
    pub(crate) fn part<'q>(&self, question: &'q str) -> &'q str {
        self.ends.of(question)
    }

    /// Whether what it says of the time still holds.
    pub(crate) fn is_of_this_time(&self, now_unix: i64) -> bool {
        let mut times = self.guards.iter().filter(|guard| matches!(guard, Guard::Time(..)));
        let now = self.clock.local(now_unix);
        times.all(|guard| guard.holds("", now))
    }

    /// Bytes that it takes, about.
    pub(crate) fn bytes(&self) -> usize {
        self.before.len() + self.after.len() + self.guards.iter().map(Guard::bytes).sum::<usize>()
    }
}

/// Whether a text can be a question: not even a trimmed one may be empty, as templates ask for that.
pub(crate) fn is_question(text: &str) -> bool {
    text.chars().any(|char| !is_space(char))
}
