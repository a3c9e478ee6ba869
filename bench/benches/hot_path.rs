//! Times of the hot path's pieces: `cargo bench -p warmpath-bench`, or `scripts/bench --micro`.
#![allow(clippy::unwrap_used, clippy::missing_docs_in_private_items, missing_docs)]

use criterion::{Criterion, criterion_group, criterion_main};

fn hot_path(criterion: &mut Criterion) {
    for (name, setup) in warmpath_bench::cases::CASES {
        let mut call = setup().unwrap();
        criterion.bench_function(name, |bencher| bencher.iter(&mut call));
    }
}

criterion_group!(benches, hot_path);
criterion_main!(benches);
