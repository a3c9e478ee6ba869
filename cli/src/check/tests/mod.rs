mod changes;
mod foreign;
mod istio;

use super::*;

fn quickstart() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy/quickstart.yaml");
    std::fs::read_to_string(path).unwrap()
}

fn report(texts: &[&str]) -> Report {
    let mut input = Input::default();
    for (number, text) in texts.iter().enumerate() {
        take(&mut input, text, number).unwrap();
    }
    check(&input, &|_| true)
}

fn rules(report: &Report) -> Vec<&'static str> {
    let mut rules: Vec<_> = report.findings.iter().map(|finding| finding.rule).collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

#[test]
fn the_quick_start_is_clean() {
    let report = report(&[&quickstart()]);
    let texts: Vec<String> =
        report.findings.iter().map(|f| f.text(&["quickstart".into()])).collect();
    assert!(texts.is_empty(), "{}", texts.concat());
    assert_eq!(report.proofs.len(), 2);
    assert_eq!(report.proofs[0].hosts, 2);
    assert_eq!(report.proofs[1].hosts, 4);
}
