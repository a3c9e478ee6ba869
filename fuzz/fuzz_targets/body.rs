#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;

const MEMO: usize = 1 << 20;

thread_local! {
    static PROMPTERS: RefCell<[warmpath_prompt::Prompter; 2]> =
        RefCell::new([warmpath_fuzz::demo(MEMO), warmpath_fuzz::demo(0)]);
}

fuzz_target!(|data: &[u8]| {
    PROMPTERS.with_borrow_mut(|[warm, cold]| warmpath_fuzz::body(warm, cold, MEMO, data));
});
