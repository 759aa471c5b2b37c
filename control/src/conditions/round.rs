//! Figures that wobble, made coarse enough to be worth a line in a status.

use kinference_api::units::Decimal;

/// The two leading digits.
pub(super) fn two_digits(value: u64) -> u64 {
    let unit = 10u64.pow(value.max(1).ilog10().saturating_sub(1));
    value / unit * unit
}

/// A number to `places` decimals; none for one that is negative or no number.
pub(super) fn decimal(value: f32, places: i32) -> Option<Decimal> {
    let unit = 10f64.powi(places);
    Decimal::new((f64::from(value) * unit).round() / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_what_people_read() {
        for (value, rounded) in [(0, 0), (7, 7), (99, 99), (812_004, 810_000), (21_004_032, 21_000_000)] {
            assert_eq!(two_digits(value), rounded);
        }
        assert_eq!(two_digits(u64::MAX), 18_000_000_000_000_000_000);
        let text = |value, places| decimal(value, places).map(|decimal| decimal.to_string());
        assert_eq!(text(4.128, 1).as_deref(), Some("4.1"));
        assert_eq!(text(0.6149, 2).as_deref(), Some("0.61"));
        assert_eq!(text(f32::NAN, 2), None);
    }
}
