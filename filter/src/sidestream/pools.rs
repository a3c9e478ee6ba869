//! The pools of this gateway's policy, for the relay: it warns of replicas that no request reaches.

use prost::Message;
use warmpath_proto::v1;

use crate::host::HostError;
use crate::shared::{self, Data};

/// Time between two looks at what the routers wrote.
const LOOK_EVERY_MS: u64 = 1_000;

/// What was seen, and whether the open stream was told.
#[derive(Debug, Default)]
pub(super) struct Pools {
    seen: Vec<u8>,
    told: bool,
    look_at_ms: u64,
}

impl Pools {
    /// A stream begins, which was told nothing.
    pub(super) fn begin(&mut self) {
        self.told = false;
        self.look_at_ms = 0;
    }

    /// Looks, if it is time to; gives what the stream is to be told where that is news to it and
    /// was seen before: routers of several listeners start one after the other, and of the pools of
    /// one alone the relay would miss those of the next.
    ///
    /// # Errors
    /// Where shared data can't be read or written: the status that Envoy gave.
    pub(super) fn news(
        &mut self,
        data: &impl Data,
        now_ms: u64,
    ) -> Result<Option<v1::Up>, HostError> {
        // A clock that was set back must not put it off for long.
        if now_ms < self.look_at_ms && self.look_at_ms - now_ms <= LOOK_EVERY_MS {
            return Ok(None);
        }
        self.look_at_ms = now_ms + LOOK_EVERY_MS;
        let Some(bytes) = data.get(shared::POOLS)? else { return Ok(None) };
        if bytes.len() > shared::POOLS_BYTES {
            return Ok(None);
        }
        if bytes != self.seen {
            self.seen = bytes;
            self.told = false;
            return Ok(None);
        }
        if std::mem::replace(&mut self.told, true) {
            return Ok(None);
        }
        let pools = v1::Pools::decode(self.seen.as_slice()).ok();
        Ok(pools.map(|pools| v1::Up { body: Some(v1::up::Body::Pools(pools)) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{Memory, merge_pools};

    fn told(up: Option<v1::Up>) -> Option<Vec<String>> {
        let Some(v1::up::Body::Pools(pools)) = up?.body else { panic!("no pools") };
        Some(pools.pools.into_iter().map(|pool| format!("{}={}", pool.name, pool.model)).collect())
    }

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_stream_is_told_once_and_again_when_they_change() {
        let (mut pools, mut data) = (Pools::default(), Memory::default());
        pools.begin();
        let at = |data: &Memory, pools: &mut Pools, now_ms| told(pools.news(data, now_ms).unwrap());
        assert_eq!(at(&data, &mut pools, 5_000), None, "no router wrote yet");
        merge_pools(&mut data, &[("eu", "demo")]).unwrap();
        assert_eq!(at(&data, &mut pools, 6_000), None, "another router may be about to write");
        merge_pools(&mut data, &[("us", "demo")]).unwrap();
        assert_eq!(at(&data, &mut pools, 7_000), None);
        assert_eq!(at(&data, &mut pools, 7_999), None, "not each tick");
        assert_eq!(at(&data, &mut pools, 8_000), Some(list(&["eu=demo", "us=demo"])));
        assert_eq!(at(&data, &mut pools, 9_000), None, "nothing new");
        merge_pools(&mut data, &[("us", "other")]).unwrap();
        assert_eq!(at(&data, &mut pools, 10_000), None);
        assert_eq!(at(&data, &mut pools, 11_000), Some(list(&["eu=demo", "us=other"])));
        // The next stream knows nothing, and is told at once.
        pools.begin();
        assert_eq!(at(&data, &mut pools, 11_001), Some(list(&["eu=demo", "us=other"])));
        // A clock that was set back silences nothing.
        merge_pools(&mut data, &[("us", "third")]).unwrap();
        assert_eq!(at(&data, &mut pools, 10), None);
        assert_eq!(at(&data, &mut pools, 1_010), Some(list(&["eu=demo", "us=third"])));
    }

    #[test]
    fn what_is_too_large_or_no_pools_is_not_told() {
        let (mut pools, mut data) = (Pools::default(), Memory::default());
        data.set(shared::POOLS, b"\xff\xff").unwrap();
        assert_eq!([1_000, 2_000].map(|now_ms| pools.news(&data, now_ms).unwrap()), [None, None]);
        let pool = v1::PolicyPool { name: "n".repeat(shared::POOLS_BYTES), model: "m".into() };
        let large = v1::Pools { pools: vec![pool], incomplete: false };
        data.set(shared::POOLS, &large.encode_to_vec()).unwrap();
        assert_eq!([3_000, 4_000].map(|now_ms| pools.news(&data, now_ms).unwrap()), [None, None]);
        merge_pools(&mut data, &[("eu", "demo")]).unwrap();
        let told = [5_000, 6_000].map(|now_ms| pools.news(&data, now_ms).unwrap().is_some());
        assert_eq!(told, [false, true]);
    }
}
