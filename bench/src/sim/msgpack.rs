//! The few msgpack forms that events use, written as compactly as the engine's encoder writes them.

pub(super) fn nil(out: &mut Vec<u8>) {
    out.push(0xc0);
}

pub(super) fn float(out: &mut Vec<u8>, value: f64) {
    out.push(0xcb);
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn uint(out: &mut Vec<u8>, value: u64) {
    if value < 0x80 {
        out.push(value as u8);
    } else if let Ok(value) = u8::try_from(value) {
        out.extend_from_slice(&[0xcc, value]);
    } else if let Ok(value) = u16::try_from(value) {
        out.push(0xcd);
        out.extend_from_slice(&value.to_be_bytes());
    } else if let Ok(value) = u32::try_from(value) {
        out.push(0xce);
        out.extend_from_slice(&value.to_be_bytes());
    } else {
        out.push(0xcf);
        out.extend_from_slice(&value.to_be_bytes());
    }
}

pub(super) fn str(out: &mut Vec<u8>, value: &str) {
    match value.len() {
        length @ 0..0x20 => out.push(0xa0 | length as u8),
        length @ 0x20..0x100 => out.extend_from_slice(&[0xd9, length as u8]),
        length => sized(out, 0xda, length),
    }
    out.extend_from_slice(value.as_bytes());
}

pub(super) fn array(out: &mut Vec<u8>, length: usize) {
    if length < 0x10 {
        out.push(0x90 | length as u8);
    } else {
        sized(out, 0xdc, length);
    }
}

pub(super) fn map(out: &mut Vec<u8>, length: usize) {
    if length < 0x10 {
        out.push(0x80 | length as u8);
    } else {
        sized(out, 0xde, length);
    }
}

pub(super) fn pair(out: &mut Vec<u8>, key: &str, value: &str) {
    str(out, key);
    str(out, value);
}

pub(super) fn optional<T>(out: &mut Vec<u8>, value: Option<T>, write: impl FnOnce(&mut Vec<u8>, T)) {
    match value {
        Some(value) => write(out, value),
        None => nil(out),
    }
}

/// A 16-bit length after `marker`, or a 32-bit one after the marker that follows it.
fn sized(out: &mut Vec<u8>, marker: u8, length: usize) {
    if let Ok(length) = u16::try_from(length) {
        out.push(marker);
        out.extend_from_slice(&length.to_be_bytes());
    } else {
        out.push(marker + 1);
        out.extend_from_slice(&(length as u32).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_class_reads_back() {
        for length in [0, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536] {
            let mut out = Vec::new();
            str(&mut out, &"x".repeat(length));
            array(&mut out, length);
            for _ in 0..length {
                nil(&mut out);
            }
            let mut bytes = out.as_slice();
            assert_eq!(rmpv::decode::read_value(&mut bytes).unwrap().as_str().unwrap().len(), length);
            assert_eq!(rmpv::decode::read_value(&mut bytes).unwrap().as_array().unwrap().len(), length);
            assert!(bytes.is_empty());
        }
        for value in [0, 0x7f, 0x80, 0xff, 0x100, 0xffff, 0x1_0000, 0xffff_ffff, 0x1_0000_0000, u64::MAX] {
            let mut out = Vec::new();
            uint(&mut out, value);
            assert_eq!(rmpv::decode::read_value(&mut out.as_slice()).unwrap().as_u64(), Some(value));
        }
    }
}
