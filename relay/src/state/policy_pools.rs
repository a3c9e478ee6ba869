//! The pools of a gateway's policy, as the gateway tells them.

use std::collections::BTreeMap;

use warmpath_proto::v1;

/// Pools of one policy that are looked at, bytes of one name, and of all of them.
const MOST_POOLS: usize = 4096;
const MOST_NAME: usize = 256;
const MOST_BYTES: usize = 64 << 10;
/// What an entry takes in memory beside its names.
const ENTRY: usize = 128;

/// The model of each pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyPools {
    models: BTreeMap<String, String>,
    /// There may be more than are named.
    incomplete: bool,
}

/// Why no request reaches the replicas of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mismatch<'a> {
    /// The policy has no such pool.
    NotInPolicy,
    /// There the pool is for this model, and not for the one that its replicas serve.
    OtherModel(&'a str),
}

impl Mismatch<'_> {
    /// For metrics and status.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NotInPolicy => "not_in_policy",
            Self::OtherModel(_) => "other_model",
        }
    }
}

impl PolicyPools {
    /// Takes what fits.
    pub(crate) fn new(pools: v1::Pools) -> Self {
        let mut all = Self { models: BTreeMap::new(), incomplete: pools.incomplete };
        let mut bytes = 0;
        for v1::PolicyPool { name, model } in pools.pools {
            bytes += name.len() + model.len();
            let fits = name.len() <= MOST_NAME && model.len() <= MOST_NAME && bytes <= MOST_BYTES;
            if fits && all.models.len() < MOST_POOLS {
                all.models.insert(name, model);
            } else {
                all.incomplete = true;
            }
        }
        all
    }

    /// Bytes of memory that it takes, about.
    pub(crate) fn bytes(&self) -> usize {
        self.models.iter().map(|(name, model)| name.len() + model.len() + ENTRY).sum()
    }

    /// Whether requests reach replicas of this pool that serve this model.
    pub(crate) fn mismatch(&self, pool: &str, model: &str) -> Option<Mismatch<'_>> {
        match self.models.get(pool) {
            Some(of) if of == model => None,
            Some(of) => Some(Mismatch::OtherModel(of)),
            None => (!self.incomplete).then_some(Mismatch::NotInPolicy),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools(names: impl IntoIterator<Item = (String, String)>) -> PolicyPools {
        let row = |(name, model)| v1::PolicyPool { name, model };
        let pools = names.into_iter().map(row).collect();
        PolicyPools::new(v1::Pools { pools, incomplete: false })
    }

    #[test]
    fn a_pool_is_missing_or_for_another_model() {
        let told = pools([("eu".into(), "demo".into()), ("us".into(), "llama".into())]);
        assert_eq!(told.mismatch("eu", "demo"), None);
        assert_eq!(told.mismatch("us", "llama3"), Some(Mismatch::OtherModel("llama")));
        assert_eq!(told.mismatch("eu2", "demo"), Some(Mismatch::NotInPolicy));
        let told = PolicyPools::new(v1::Pools { pools: vec![], incomplete: true });
        assert_eq!(told.mismatch("eu", "demo"), None, "it may be among those left out");
    }

    #[test]
    fn what_a_gateway_tells_is_bounded() {
        let many = |count: usize, name: &str| {
            pools((0..count).map(|i| (format!("{name}{i}"), "m".into())))
        };
        let told = many(MOST_POOLS, "");
        assert_eq!((told.models.len(), told.incomplete), (MOST_POOLS, false));
        let told = many(MOST_POOLS + 1, "");
        assert_eq!((told.models.len(), told.incomplete), (MOST_POOLS, true));
        let told = many(1000, &"n".repeat(200));
        assert!(told.incomplete && told.bytes() <= MOST_BYTES + told.models.len() * ENTRY);
        for long in [("n".repeat(257), "m".into()), ("n".into(), "m".repeat(257))] {
            let told = pools([long]);
            assert_eq!((told.models.len(), told.incomplete), (0, true));
        }
    }
}
