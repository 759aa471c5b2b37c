//! Fuel of a decision, compared with the checked-in table. `--update` writes the table anew.

use anyhow::{Result, bail};
use kinference_wasm_tests::fuel;

fn main() -> Result<()> {
    let update = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--update") => true,
        Some(other) => bail!("unknown argument {other}; the only one is --update"),
    };
    let measured = fuel::measure()?;
    let kept = if update { fuel::keep(&measured)? } else { fuel::kept()? };
    print!("{}", fuel::table(&measured, &kept));
    fuel::check(&measured, &kept)
}
