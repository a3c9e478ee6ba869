//! The Istio objects that the project ships.

use std::process::Command;

use super::super::node::Node;
use super::*;

const FILES: [&str; 4] = ["bootstrap.yaml", "clusters.yaml", "filter.yaml", "gateway.yaml"];

fn shipped() -> Vec<String> {
    FILES.iter().map(|file| super::shipped(&format!("istio/{file}"))).collect()
}

fn checked(texts: &[String]) -> Report {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    with(&texts, exceptions("istio/filter.check.yaml"))
}

#[test]
fn they_are_clean() {
    let report = checked(&shipped());
    let texts: Vec<String> =
        report.findings.iter().map(|f| f.text(&FILES.map(str::to_owned))).collect();
    assert_eq!(rules(&report), Vec::<&str>::new(), "{}", texts.concat());
    assert_eq!(verdict(&report), Verdict::Proved);
    assert_eq!(report.proofs.iter().map(|proof| proof.hosts).collect::<Vec<_>>(), [2, 4]);
}

#[test]
fn what_is_broken_there_is_found_at_its_line() {
    for (file, from, to, rule) in [
        (0, "singleton: true", "singleton: false", "singleton"),
        (1, "locality: { region: eu-west }", "locality: { region: us-east }", "outside"),
        (1, "header: x-gateway-destination-endpoint", "header: x", "override-host"),
        (2, "allow_on_headers_stop_iteration: true", "fail_open: false", "stop-iteration"),
        (2, "67108864", "32768", "buffer-limit"),
        (2, "- remove: x-warmpath-zone", "- remove: x", "strip"),
        (2, "llm.example.com:443", "other.example.com:443", "no-decided-route"),
        (2, "INSERT_FIRST", "ADD", "shadowed"),
        (2, "applyTo: LISTENER", "applyTo: NETWORK", "istio-patch"),
        (3, "kind: VirtualService", "kind: Other", "no-decided-route"),
        (3, "kind: RequestAuthentication", "kind: Other", "zone-unset"),
        (3, "directResponse:", "route: [{ destination: { host: engines } }]\n      x:", "unproven"),
        (
            3,
            "directResponse:",
            "redirect: { authority: us.example.com, redirectCode: 307 }\n      x:",
            "redirect-elsewhere",
        ),
        (
            3,
            "directResponse:",
            "redirect: {}\n      mirrors: [{ destination: { host: x } }]\n      y:",
            "",
        ),
    ] {
        let mut texts = shipped();
        assert!(texts[file].contains(from), "{from}");
        texts[file] = texts[file].replacen(from, to, 1);
        let report = checked(&texts);
        if rule.is_empty() {
            assert_eq!(rules(&report), Vec::<&str>::new());
            continue;
        }
        let found = report.findings.iter().find(|finding| finding.rule == rule);
        let found = found.unwrap_or_else(|| panic!("{rule}: {:?}", rules(&report)));
        assert!(found.place.line > 0, "{found:?}");
    }
}

/// What the patches make together is configuration that Envoy accepts.
#[test]
fn envoy_accepts_what_they_make() {
    let Some(envoy) = std::env::var_os("ENVOY") else {
        eprintln!("SKIPPED: ENVOY is not set, so that Envoy did not validate the Istio patches");
        return;
    };
    let mut input = Input::default();
    for (number, text) in shipped().iter().enumerate() {
        take(&mut input, text, number).unwrap();
    }
    let mut config = input.envoys(&mut Findings::default()).remove(0).to_json();
    let built = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/wasm32-wasip1/filter/warmpath_filter.wasm");
    let text = if built.exists() {
        config.to_string().replace("/etc/warmpath/warmpath_filter.wasm", built.to_str().unwrap())
    } else {
        eprintln!("SKIPPED: the filter is not built: Envoy validates the rest without it");
        config["bootstrap_extensions"].take();
        let manager = &mut config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"]
            [0]["typed_config"];
        manager["http_filters"].as_array_mut().unwrap().retain(|f| f["name"] != "warmpath");
        config.to_string()
    };
    let file = std::env::temp_dir().join(format!("warmpath-istio-{}.json", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let output = Command::new(envoy)
        .args(["--mode", "validate", "--log-level", "error", "-c"])
        .arg(&file)
        .output()
        .unwrap();
    std::fs::remove_file(&file).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
}

#[test]
fn what_configures_the_whole_mesh_is_told() {
    let found = |more: &str| {
        let mut texts = shipped();
        texts.push(more.to_owned());
        let report = checked(&texts);
        (rules(&report), verdict(&report))
    };
    for mesh in [
        "kind: ConfigMap\nmetadata: { name: istio }\ndata: { mesh: 'defaultConfig: {}' }",
        "kind: ConfigMap\nmetadata: { name: istio-1-27 }",
        "kind: Deployment\nspec: { template: { metadata: { annotations: { proxy.istio.io/config: 'tracing: {}' } } } }",
        "kind: Telemetry\nmetadata: { name: x }",
    ] {
        assert_eq!(found(mesh), (vec!["istio-object"], Verdict::NotProved), "{mesh}");
    }
    for other in ["kind: ConfigMap\nmetadata: { name: models }", "kind: Deployment"] {
        assert_eq!(found(other), (vec![], Verdict::Proved), "{other}");
    }
}

#[test]
fn nothing_but_envoy_filters_makes_an_envoy() {
    let texts = shipped();
    assert_eq!(rules(&report(&[&texts[3]])), ["no-router"]);
    let _: Vec<Node> = Input::default().envoys(&mut Findings::default());
}
