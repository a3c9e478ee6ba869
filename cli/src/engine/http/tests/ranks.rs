//! Ranks and their load: who serves, who waits, and what is reported of it.

use super::*;

#[tokio::test]
async fn a_load_report_comes_when_asked_for() {
    let engine = Engine::new(&[]).await;
    for (format, report) in [
        (
            "TEXT",
            Some(
                "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0",
            ),
        ),
        (
            "json",
            Some(
                r#"JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}}"#,
            ),
        ),
        ("BIN", None),
    ] {
        let request = Request::post(COMPLETIONS).header("endpoint-load-metrics-format", format);
        let body = Body::from(ids(0..40).to_string());
        let answer = engine.send(request.body(body).unwrap()).await;
        let header = answer.headers.get("endpoint-load-metrics").map(|v| v.to_str().unwrap());
        assert_eq!(header, report);
    }
}

#[tokio::test]
async fn a_rank_can_be_pinned_and_has_its_own_cache_and_events() {
    let engine = Engine::new(&["--data-parallel-size", "2"]).await;
    let send = async |rank: &str| {
        let request = Request::post(COMPLETIONS).header("x-data-parallel-rank", rank);
        engine.send(request.body(Body::from(ids(0..40).to_string())).unwrap()).await
    };
    assert_eq!(send("1").await.cached(), Value::Null);
    assert_eq!(send("0").await.cached(), Value::Null);
    assert_eq!(send("1").await.cached(), json!({"cached_tokens": 32}));
    assert_eq!(send("2").await.status, StatusCode::BAD_REQUEST);
    let batches = engine.replay(1).await;
    assert_eq!((batches.len(), batches[0][2].as_u64()), (1, Some(1)));
}

#[tokio::test]
async fn behind_a_balancer_the_header_counts_the_ranks_here_and_events_those_of_all() {
    let hybrid = ["--data-parallel-size-local", "2", "--data-parallel-hybrid-lb"];
    let hybrid = [&hybrid[..], &["--data-parallel-start-rank", "2"]].concat();
    for (more, own, number) in [(&hybrid[..], 2, 3), (&["--data-parallel-rank", "3"][..], 1, 3)] {
        let engine = Engine::new(&[&["--data-parallel-size", "4"], more].concat()).await;
        let send = async |rank: &str| {
            let request = Request::post(COMPLETIONS).header("x-data-parallel-rank", rank);
            engine.send(request.body(Body::from(ids(0..40).to_string())).unwrap()).await
        };
        let last = (own - 1).to_string();
        assert_eq!(send(&last).await.cached(), Value::Null);
        assert_eq!(send(&last).await.cached(), json!({"cached_tokens": 32}));
        for wrong in [&own.to_string(), "-1", "3"] {
            let answer = send(wrong).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST);
            let message = answer.json()["error"]["message"].to_string();
            let told = format!("data_parallel_rank {wrong} is out of range [0, {own}).");
            assert!(message.contains(&told), "{message}");
        }
        assert_eq!(send("any").await.status, StatusCode::OK);
        let batches = engine.replay(number).await;
        assert_eq!(batches[0][2].as_u64(), Some(number.into()));
        let page = String::from_utf8(engine.get("/metrics").await.body.to_vec()).unwrap();
        let label = format!("vllm:num_requests_running{{engine=\"{number}\"");
        assert!(page.contains(&label) && !page.contains("engine=\"0\""), "{page}");
    }
}

#[test]
fn ranks_that_cannot_be_are_refused() {
    for (options, words) in [
        ("--data-parallel-hybrid-lb --data-parallel-external-lb", "exclude each other"),
        ("--data-parallel-size=4 --data-parallel-external-lb", "needs --data-parallel-rank"),
        ("--data-parallel-size=4 --data-parallel-hybrid-lb", "need --data-parallel-size-local"),
        ("--data-parallel-size=4 --data-parallel-size-local=2", "needs --data-parallel-hybrid-lb"),
        ("--data-parallel-size=4 --data-parallel-rank=4", "4 to 4 are not below"),
        (
            "--data-parallel-size=4 --data-parallel-size-local=2 --data-parallel-start-rank=3",
            "3 to 4 are not below",
        ),
    ] {
        let fixed = ["engine", "--model", "."];
        let args = Cli::parse_from(fixed.into_iter().chain(options.split(' '))).args;
        let error = args.check().unwrap_err().to_string();
        assert!(error.contains(words), "{options}: {error}");
    }
}

#[tokio::test]
async fn more_than_the_seats_wait_and_all_are_served() {
    let engine =
        Arc::new(Engine::new(&["--max-num-seqs", "1", "--num-gpu-blocks-override", "8"]).await);
    let mut set = tokio::task::JoinSet::new();
    for start in 0..40 {
        let engine = Arc::clone(&engine);
        set.spawn(async move {
            engine.post(COMPLETIONS, &ids(start * 100..start * 100 + 90)).await.status
        });
    }
    while let Some(status) = set.join_next().await {
        assert_eq!(status.unwrap(), StatusCode::OK);
    }
    let rank = &engine.app.ranks[0];
    assert_eq!((rank.running(), rank.waiting(), rank.blocks().0), (0, 0, 0));
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_nothing_behind() {
    let engine = Engine::new(&[]).await;
    let mut body = ids(0..50);
    body["stream"] = json!(true);
    body["max_tokens"] = json!(30_000);
    body["ignore_eos"] = json!(true);
    let request = Request::post(COMPLETIONS).body(Body::from(body.to_string())).unwrap();
    let response = engine.router.clone().oneshot(request).await.unwrap();
    let mut stream = response.into_body();
    stream.frame().await.unwrap().unwrap();
    let rank = &engine.app.ranks[0];
    assert_eq!(rank.running(), 1);
    drop(stream);
    while rank.running() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(rank.blocks().0, 0);
}

/// Times are simulated ones here: the clock jumps to the next timer.
#[tokio::test(start_paused = true)]
async fn a_cold_prompt_takes_its_time_and_a_warm_one_does_not() {
    let engine = Engine::new(&["--speedup", "1", "--kv-events-endpoint", ""]).await;
    let mut body = ids(0..2048);
    body["max_tokens"] = json!(1);
    let mut took = Vec::new();
    for _ in 0..2 {
        let start = tokio::time::Instant::now();
        assert_eq!(engine.post(COMPLETIONS, &body).await.status, StatusCode::OK);
        took.push(start.elapsed().as_millis());
    }
    assert!((790..=805).contains(&took[0]), "{took:?}");
    assert!((60..=75).contains(&took[1]), "{took:?}");
}
