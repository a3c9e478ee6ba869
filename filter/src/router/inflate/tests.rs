//! Compressed bodies, whole, cut off and hostile.

use std::io::Write;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use proptest::prelude::*;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::*;

const ALL: [Coding; 4] = [Coding::Gzip, Coding::Deflate, Coding::Brotli, Coding::Zstd];

fn deflated(coding: Coding, text: &[u8]) -> Vec<u8> {
    match coding {
        Coding::Gzip => {
            let mut to = GzEncoder::new(Vec::new(), Compression::default());
            to.write_all(text).unwrap();
            to.finish().unwrap()
        }
        Coding::Deflate => {
            let mut to = ZlibEncoder::new(Vec::new(), Compression::default());
            to.write_all(text).unwrap();
            to.finish().unwrap()
        }
        Coding::Brotli => {
            let mut to = brotli::CompressorWriter::new(Vec::new(), 4_096, 5, 22);
            to.write_all(text).unwrap();
            to.into_inner()
        }
        Coding::Zstd => compress_to_vec(text, CompressionLevel::Fastest),
    }
}

fn inflated(coding: Coding, body: &[u8], most: usize) -> Result<Vec<u8>, InflateError> {
    let mut text = Vec::new();
    let bytes = coding.inflate(body, most, |piece| {
        text.extend_from_slice(piece);
        Ok(())
    })?;
    assert_eq!(bytes, text.len());
    Ok(text)
}

#[test]
fn codings_go_by_their_names_in_headers() {
    for (name, coding) in [
        ("gzip", Some(Coding::Gzip)),
        (" X-GZIP ", Some(Coding::Gzip)),
        ("deflate", Some(Coding::Deflate)),
        ("br", Some(Coding::Brotli)),
        ("Zstd", Some(Coding::Zstd)),
        ("compress", None),
        ("gzip, br", None),
        ("", None),
    ] {
        assert_eq!(Coding::of_header(name.as_bytes()), coding, "{name}");
    }
}

#[test]
fn what_is_cut_off_or_no_such_coding_is_refused() {
    let text = b"{\"model\": \"demo\", \"prompt\": \"Not much of a text.\"}".repeat(50);
    for coding in ALL {
        let body = deflated(coding, &text);
        assert_eq!(inflated(coding, &body, 1 << 20).unwrap(), text, "{coding:?}");
        for cut in [0, 1, 5, body.len() / 2, body.len() - 1] {
            let got = inflated(coding, &body[..cut], 1 << 20);
            assert_eq!(got, Err(InflateError::Corrupt), "{coding:?} to {cut}");
        }
        assert_eq!(inflated(coding, &text, 1 << 20), Err(InflateError::Corrupt), "{coding:?}");
    }
    let twice = deflated(Coding::Zstd, &text).repeat(2);
    assert_eq!(inflated(Coding::Zstd, &twice, 1 << 20), Err(InflateError::Corrupt));
}

#[test]
fn a_body_grows_so_far_and_no_further() {
    for coding in ALL {
        let small = deflated(coding, &vec![b' '; FLOOR]);
        assert_eq!(inflated(coding, &small, 1 << 20).unwrap().len(), FLOOR, "{coding:?}");
        assert_eq!(inflated(coding, &small, FLOOR - 1), Err(InflateError::TooLarge), "{coding:?}");
        // Within the size, but a thousandth of it came.
        let bomb = deflated(coding, &vec![b' '; 4 << 20]);
        let ratio = (4 << 20) / bomb.len();
        let got = inflated(coding, &bomb, 8 << 20);
        assert_eq!(got.is_err(), ratio > RATIO, "{coding:?}: {ratio}");
    }
}

#[test]
fn a_window_is_known_before_memory_is_taken_for_it() {
    let frame = |bytes: &[u8]| [&[0x28, 0xb5, 0x2f, 0xfd], bytes].concat();
    assert_eq!(window(&frame(&[0x00, 0x58])), Some(2 << 20));
    assert_eq!(window(&frame(&[0x00, 0xff])), Some((1 << 41) + (1 << 38) * 7));
    assert_eq!(window(&frame(&[0x20, 7])), Some(7));
    assert_eq!(window(&frame(&[0x60, 1, 0])), Some(257));
    assert_eq!(window(&frame(&[0xe1, 9, 0, 0, 0, 1, 0, 0, 0, 0])), Some(1 << 24));
    for short in [&[][..], &[0x00], &[0x60, 1]] {
        assert_eq!(window(&frame(short)), None);
    }
    assert_eq!(window(b"PK"), None);
    let greedy = frame(&[0x00, 0x88, 0x01, 0x00, 0x00]);
    assert_eq!(inflated(Coding::Zstd, &greedy, 1 << 20), Err(InflateError::Corrupt));
}

fn coding() -> impl Strategy<Value = Coding> {
    proptest::sample::select(&ALL[..])
}

proptest! {
    #[test]
    fn what_goes_in_comes_out(coding in coding(), text in proptest::collection::vec(any::<u8>(), 0..5_000)) {
        prop_assert_eq!(inflated(coding, &deflated(coding, &text), 1 << 20).unwrap(), text);
    }

    /// Whatever a client sends: an answer, no panic, and no more than the bound.
    #[test]
    fn damaged_bodies_come_to_an_end(
        coding in coding(),
        text in "[a-z ]{0,2000}",
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut body = deflated(coding, text.as_bytes());
        for (at, byte) in damage {
            if !body.is_empty() {
                let at = at.index(body.len());
                body[at] = byte;
            }
        }
        if let Ok(text) = inflated(coding, &body, 10_000) {
            prop_assert!(text.len() <= 10_000);
        }
    }

    #[test]
    fn any_bytes_come_to_an_end(coding in coding(), body in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = inflated(coding, &body, 10_000);
    }
}
