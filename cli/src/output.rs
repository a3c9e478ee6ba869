//! Where the commands write. `println!` and `eprintln!` panic where nobody reads any more, as behind
//! `| head`; these don't.

use std::fmt::Display;
use std::io::{self, Write};

/// Writes to standard output. That the reader has seen enough is no failure, and changes no exit
/// code; what can't be written for another reason (a full disk) is one.
pub(crate) fn print(text: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    enough(write!(out, "{text}").and_then(|()| out.flush()))
}

/// Writes a line to standard output, as [`print`] does.
pub(crate) fn line(text: impl Display) -> io::Result<()> {
    print(format_args!("{text}\n"))
}

/// Tells something on standard error, where that is still read.
pub(crate) fn tell(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Passes over that the reader has gone.
fn enough(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
