//! Policy, relay and clusters that don't mean the same model.

use super::*;

/// The quick start with a second model in each region: pools `beta-…`, replicas at the ports below.
fn two_models() -> String {
    let policy = quickstart().replacen(
        "\"demo-us-east\": {\"region\": \"us-east\", \"model\": \"demo\"}\n",
        "\"demo-us-east\": {\"region\": \"us-east\", \"model\": \"demo\"},\n                                \"beta-eu-west\": {\"region\": \"eu-west\", \"model\": \"beta\"}\n",
        1,
    );
    let zones = policy
        .replacen(
            "{\"demo-eu-west\": \"eu.demo-eu-west\"}",
            "{\"demo-eu-west\": \"eu.demo-eu-west\", \"beta-eu-west\": \"beta-eu-west\"}",
            1,
        )
        .replacen(
            "\"demo-us-east\": \"global.demo-us-east\"\n",
            "\"demo-us-east\": \"global.demo-us-east\", \"beta-eu-west\": \"beta-eu-west\"\n",
            1,
        );
    zones.replacen(
        "    - name: warmpath-relay\n",
        "    - name: beta-eu-west
      type: STATIC
      connect_timeout: 1s
      load_assignment:
        endpoints:
          - locality: { region: eu-west }
            lb_endpoints:
              - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 18011 } } }
      load_balancing_policy: *replica_named_by_the_filter
      common_lb_config: *no_panic
      health_checks: *health
      circuit_breakers: *breakers
    - name: warmpath-relay\n",
        1,
    )
}

/// Puts beta's replica behind demo's.
fn spilling(text: &str) -> String {
    text.replacen(
        "          - priority: 0\n            locality: { region: eu-west }\n            lb_endpoints: &eu_west",
        "          - { priority: 1, locality: { region: eu-west }, lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 18011 } } } }] }\n          - priority: 0\n            locality: { region: eu-west }\n            lb_endpoints: &eu_west",
        1,
    )
}

const BETA: &str = "  - endpoint: 127.0.0.1:18011\n    pool: beta-eu-west\n    model: beta\n";

#[test]
fn a_cluster_fails_over_to_its_own_model_only() {
    assert_eq!(rules(&report(&[&two_models()])), Vec::<&str>::new());
    let spilling = spilling(&two_models());
    let found = report(&[&spilling]);
    assert_eq!(rules(&found), ["other-model"]);
    assert_eq!(Counts::of(&found.findings).errors, 1);
    // Also where the relay says so, and the host stands among the first.
    let relay = shipped("quickstart.relay.yaml") + BETA;
    assert_eq!(rules(&report(&[&two_models(), &relay])), Vec::<&str>::new());
    assert_eq!(rules(&report(&[&spilling, &relay])), ["other-model"]);
    let among = two_models().replacen(
        "lb_endpoints: &eu_west\n",
        "lb_endpoints: &eu_west\n              - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 18011 } } }\n",
        1,
    );
    assert_eq!(rules(&report(&[&among, &relay])), ["other-model"]);
}

#[test]
fn policy_and_relay_mean_the_same_by_a_pool() {
    let relay = shipped("quickstart.relay.yaml");
    let told = |relay: &str| rules(&report(&[&quickstart(), relay]));
    let renamed = relay.replacen("    model: demo\n", "    model: demo3\n", 1);
    assert_eq!(told(&renamed), ["pool-model"]);
    let more = |pool: &str, model: &str| {
        format!(
            "{relay}discovery:\n  - dns: engines.local\n    port: 8000\n    pool: {pool}\n    model: {model}\n"
        )
    };
    assert_eq!(told(&more("demo-eu-west", "demo")), Vec::<&str>::new());
    assert_eq!(told(&more("demo-eu-wset", "demo")), ["relay-pool"]);
    assert_eq!(told(&more("demo-eu-west", "llama")), ["pool-model"]);
    // A relay that only discovers is one, too.
    let only = "listen: 127.0.0.1:1\nmodels: [{name: demo}]\ndiscovery: [{dns: x, pool: other, model: demo}]\n";
    assert_eq!(told(only), ["relay-pool"]);
    // A misspelled pool hides a replica from all that is listed by pools.
    let misspelled = relay.replacen("pool: demo-eu-west", "pool: demo-eu-wset", 1);
    assert!(told(&misspelled).contains(&"relay-pool"));
}

#[test]
fn an_adapter_that_no_relay_knows_is_found() {
    let policy = quickstart().replacen(
        "\"zones\": {",
        "\"models\": {\"demo\": {\"adapters\": [\"sql\"]}}, \"zones\": {",
        1,
    );
    let relay = shipped("quickstart.relay.yaml");
    assert_eq!(rules(&report(&[&policy])), Vec::<&str>::new(), "nothing says who has it");
    assert_eq!(rules(&report(&[&policy, &relay])), ["adapter-unknown"]);
    let knows = relay.replacen("adapters: []", "adapters: [sql]", 1);
    assert_eq!(rules(&report(&[&policy, &knows])), Vec::<&str>::new());
}
