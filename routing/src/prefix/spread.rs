//! A cheap hash for keys that are well spread already: chunk hashes, engine hashes, node numbers.

use std::hash::Hasher;

/// Multiplies by an odd constant and turns; enough for keys that nobody chooses to collide.
#[derive(Debug, Default, Clone, Copy)]
pub struct SpreadHasher(u64);

impl Hasher for SpreadHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }
}
