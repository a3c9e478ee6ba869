//! Pools of gateways' policies, held against those of the replicas.

use warmpath_proto::v1;

use super::*;
use crate::state::policy_pools::PolicyPools;

fn policy(stream: u64, node: &str, pools: &[(&str, &str)]) -> Message {
    let row = |(name, model): &(&str, &str)| v1::PolicyPool {
        name: (*name).to_owned(),
        model: (*model).to_owned(),
    };
    let pools = pools.iter().map(row).collect();
    let pools = PolicyPools::new(v1::Pools { pools, incomplete: false });
    Message::Policy { stream, node: node.into(), pools }
}

/// Pool, model, problem, gateways.
fn mismatches(state: &State) -> Vec<(String, String, &'static str, usize)> {
    let row = |row: PoolMismatch| (row.pool, row.model, row.problem, row.gateways);
    state.summary().pool_mismatches.into_iter().map(row).collect()
}

#[tokio::test]
async fn pools_that_a_gateways_policy_cannot_use_are_told_while_it_follows() {
    let of = |endpoint: &str, pool: &str| Registration { pool: pool.into(), ..known(endpoint) };
    let mut state = State::new(vec![of("127.0.0.1:0", "eu"), of("127.0.0.1:1", "eu")]);
    state.settle();
    let first = subscribe(&mut state).await.unwrap();
    let second = subscribe(&mut state).await.unwrap();
    assert_eq!(mismatches(&state), [], "no gateway told its policy");
    let fits = [("eu", "model"), ("elsewhere", "model")];
    state.take(policy(first.stream, "a", &fits));
    assert_eq!(mismatches(&state), [], "another relay may have the other pool's replicas");
    state.take(policy(second.stream, "b", &[("eu", "other")]));
    let row = |pool: &str, problem, gateways| (pool.into(), "model".into(), problem, gateways);
    assert_eq!(mismatches(&state), [row("eu", "other_model", 1)]);
    let shown = state.summary().pool_mismatches.swap_remove(0);
    assert!(shown.nodes.iter().eq(["b"]) && shown.policy_models.iter().eq(["other"]));
    // One that joins later.
    let joins = Message::Join { replica: 7, known: Box::new(of("127.0.0.1:7", "us")) };
    state.take(joins);
    let (eu, us) = (row("eu", "other_model", 1), row("us", "not_in_policy", 2));
    assert_eq!(mismatches(&state), [eu, us]);
    // The policy is mended, then the other gateway leaves.
    state.take(policy(second.stream, "b", &fits));
    assert_eq!(mismatches(&state), [row("us", "not_in_policy", 2)]);
    drop(first);
    assert_eq!(mismatches(&state), [row("us", "not_in_policy", 1)]);
    state.take(policy(77, "c", &[]));
    assert_eq!(mismatches(&state), [row("us", "not_in_policy", 1)], "no such stream");
    state.take(Message::Leave { replica: 7 });
    assert_eq!(mismatches(&state), []);
}

#[tokio::test]
async fn policies_of_many_gateways_are_bounded() {
    let mut state = state(1);
    state.settle();
    let names: Vec<String> = (0..4096).map(|i| format!("{i:010}")).collect();
    let large: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "m")).collect();
    let mut streams = Vec::new();
    for _ in 0..64 {
        let stream = subscribe(&mut state).await.unwrap();
        state.take(policy(stream.stream, "n", &large));
        streams.push(stream);
    }
    let compared = mismatches(&state)[0].3;
    assert!((20..64).contains(&compared), "{compared}");
    // Those that tell less still are.
    state.take(policy(streams[63].stream, "n", &[]));
    assert_eq!(mismatches(&state)[0].3, compared + 1);
}

/// Log lines of this thread.
#[derive(Clone, Default)]
struct Lines(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        let text = String::from_utf8(bytes).unwrap();
        text.lines().filter(|line| line.contains("WARN")).map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn a_pools_problem_is_logged_once_and_not_once_per_stream() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber =
        tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let mut state = state(2);
    state.settle();
    for _ in 0..3 {
        let stream = subscribe(&mut state).await.unwrap();
        state.take(policy(stream.stream, "node\n1", &[("poll", "model")]));
        state.take(policy(stream.stream, "node\n1", &[("poll", "model"), ("b", "m")]));
        drop(stream);
    }
    let logged = lines.take();
    assert_eq!(logged.len(), 1, "{logged:#?}");
    for word in ["policy has no such pool", "node=\"node\\n1\"", "pool=\"pool\""] {
        assert!(logged[0].contains(word), "{logged:#?}");
    }
    // Another problem of the same pool, another node, another pool that joins.
    let stream = subscribe(&mut state).await.unwrap();
    state.take(policy(stream.stream, "node\n1", &[("pool", "llama")]));
    let logged = lines.take();
    assert!(logged.len() == 1 && logged[0].contains("policy_model=\"llama\""), "{logged:#?}");
    state.take(policy(stream.stream, "2", &[("pool", "llama")]));
    assert_eq!(lines.take(), [""; 0], "the same stream said the same");
    for replica in [7, 8] {
        let known = Registration { pool: "late".into(), ..known(&format!("127.0.0.1:{replica}")) };
        state.take(Message::Join { replica, known: Box::new(known) });
    }
    let logged = lines.take();
    assert!(logged.len() == 1 && logged[0].contains("pool=\"late\""), "{logged:#?}");
}
