//! Maps for keys that are well spread already: engine hashes, chunk hashes, node numbers.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;

use kinference_routing::prefix::SpreadHasher;

pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<SpreadHasher>>;
pub(super) type Set<K> = HashSet<K, BuildHasherDefault<SpreadHasher>>;
