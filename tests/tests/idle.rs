//! A gateway without requests looks around less often, and still knows what there is to know when the
//! next request comes.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use std::thread::sleep;
use std::time::Duration;

use warmpath_tests::{Client, Options, Stack, eventually, system_prompt};

/// From the relay into shared data, with time to spare; far less than between two slow ticks.
const WAY: Duration = Duration::from_millis(100);

#[test]
fn the_first_request_after_a_silence_goes_by_what_holds_now() {
    let stack = Stack::start(Options::quickstart().unwrap()).unwrap();
    let client = stack.client();
    let relay = Client::new(stack.ports().relay_admin());
    let system = system_prompt("the silence");
    client.chat("eu", &system, "One?").unwrap();
    eventually("a warm decision", || {
        client.chat("eu", &system, "Two?").unwrap().explained("reason") == "warm"
    });
    for round in 0..4 {
        let home = client.chat("eu", &system, &format!("Who, {round}?")).unwrap();
        let home = home.engine().to_owned();
        // Twenty ticks without a request, and some.
        sleep(Duration::from_millis(1_600));
        let drain = relay.post("eu", &format!("/drain?endpoint={home}"), &[], b"").unwrap();
        assert_eq!(drain.status, 200);
        sleep(WAY);
        let next = client.chat("eu", &system, &format!("And now, {round}?")).unwrap();
        assert_eq!(next.status, 200);
        assert_ne!(next.engine(), home, "it takes nothing new");
        let undrain = format!("DELETE /drain?endpoint={home} HTTP/1.1\r\nhost: x\r\n");
        relay.raw(format!("{undrain}connection: close\r\n\r\n").as_bytes()).unwrap();
        sleep(WAY);
    }
    eventually("all to be counted as ended", || {
        stack.stat("wasmcustom.warmpath.router.in_flight").unwrap() == 0
    });
}
