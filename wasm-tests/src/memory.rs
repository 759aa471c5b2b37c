//! Reading and writing a VM's memory from host functions.

use wasmtime::{Caller, Result, bail};

use crate::vm::State;

/// Statuses of the ABI.
pub(crate) mod status {
    pub(crate) const OK: i32 = 0;
    pub(crate) const NOT_FOUND: i32 = 1;
    pub(crate) const BAD_ARGUMENT: i32 = 2;
    pub(crate) const PARSE_FAILURE: i32 = 4;
    pub(crate) const CAS_MISMATCH: i32 = 8;
}

/// Bytes of the VM's memory.
pub(crate) fn read(caller: &mut Caller<'_, State>, at: u32, length: u32) -> Result<Vec<u8>> {
    let Some(memory) = caller.data().memory else { bail!("the module has no memory") };
    let mut bytes = vec![0; length as usize];
    memory.read(&mut *caller, at as usize, &mut bytes)?;
    Ok(bytes)
}

/// Text in the VM's memory.
pub(crate) fn text(caller: &mut Caller<'_, State>, at: u32, length: u32) -> Result<String> {
    Ok(String::from_utf8_lossy(&read(caller, at, length)?).into_owned())
}

/// Writes bytes.
pub(crate) fn write(caller: &mut Caller<'_, State>, at: u32, bytes: &[u8]) -> Result<()> {
    let Some(memory) = caller.data().memory else { bail!("the module has no memory") };
    memory.write(&mut *caller, at as usize, bytes)?;
    Ok(())
}

/// Hands bytes to the VM: allocates there, and writes where they are and how long. No bytes are handed as nothing.
pub(crate) fn give(caller: &mut Caller<'_, State>, bytes: &[u8], at: u32, length_at: u32) -> Result<i32> {
    let mut place = 0;
    if !bytes.is_empty() {
        let Some(allocate) = caller.data().allocate.clone() else { bail!("the module does not allocate") };
        place = allocate.call(&mut *caller, u32::try_from(bytes.len())?)?;
        write(caller, place, bytes)?;
    }
    write(caller, at, &place.to_le_bytes())?;
    write(caller, length_at, &u32::try_from(bytes.len())?.to_le_bytes())?;
    Ok(status::OK)
}

/// Names and values to the ABI's form.
pub(crate) fn encode_pairs<'a>(pairs: impl Iterator<Item = (&'a str, &'a [u8])>) -> Result<Vec<u8>> {
    let pairs: Vec<_> = pairs.collect();
    let mut bytes = u32::try_from(pairs.len())?.to_le_bytes().to_vec();
    for (name, value) in &pairs {
        bytes.extend(u32::try_from(name.len())?.to_le_bytes());
        bytes.extend(u32::try_from(value.len())?.to_le_bytes());
    }
    for (name, value) in pairs {
        for part in [name.as_bytes(), value] {
            bytes.extend(part);
            bytes.push(0);
        }
    }
    Ok(bytes)
}

/// Names and values in the ABI's form: a count, all lengths, then each name and value with a zero byte after it.
pub(crate) fn pairs(bytes: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize);
    if bytes.is_empty() {
        return Some(Vec::new());
    }
    let count = number(0)?;
    let mut at = 4 + count.checked_mul(8)?;
    let mut pairs = Vec::new();
    for i in 0..count {
        let (name, value) = (number(4 + 8 * i)?, number(8 + 8 * i)?);
        let text = String::from_utf8_lossy(bytes.get(at..at + name)?).into_owned();
        at += name + 1;
        pairs.push((text, bytes.get(at..at + value)?.to_vec()));
        at += value + 1;
    }
    Some(pairs)
}
