use super::*;

#[test]
fn periods_parse_and_print() {
    for (text, ms, printed) in [
        ("250ms", 250, "250ms"),
        ("10s", 10_000, "10s"),
        ("1.5s", 1_500, "1s500ms"),
        ("0.3s", 300, "300ms"),
        ("1m30s", 90_000, "1m30s"),
        ("90s", 90_000, "1m30s"),
        ("2h", 7_200_000, "2h"),
        ("1h1ms", 3_600_001, "1h1ms"),
        ("0s", 0, "0s"),
    ] {
        let period: Period = text.parse().expect(text);
        assert_eq!(period.as_millis(), ms, "{text}");
        assert_eq!(period.to_string(), printed, "{text}");
        assert_eq!(printed.parse::<Period>(), Ok(period), "{text} printed and read again");
    }
}

#[test]
fn what_is_no_period_is_refused() {
    for text in ["", "10", "s", "10 s", "-1s", "10x", "1.s", ".5s", "1e3s", "10S", "1.2.3s", "٣s", "10s "] {
        assert_eq!(text.parse::<Period>(), Err(UnitError::Period(text.into())), "{text:?}");
    }
    let long = "999999999h";
    assert_eq!(long.parse::<Period>(), Err(UnitError::PeriodTooLong(long.into())));
}

#[test]
fn sizes_parse_and_print() {
    for (text, bytes, printed) in [
        ("64Mi", 64 << 20, "64Mi"),
        ("8Ki", 8192, "8Ki"),
        ("1024Ki", 1 << 20, "1Mi"),
        ("1Gi", 1 << 30, "1Gi"),
        ("2Ti", 2 << 40, "2Ti"),
        ("8M", 8_000_000, "8000000"),
        ("1k", 1000, "1000"),
        ("1000", 1000, "1000"),
        ("0", 0, "0"),
    ] {
        let size: Size = text.parse().expect(text);
        assert_eq!(size.bytes(), bytes, "{text}");
        assert_eq!(size.to_string(), printed, "{text}");
    }
}

#[test]
fn what_is_no_size_is_refused() {
    for text in ["", "Mi", "64MB", "64mi", "-1", "1.5Gi", "64 Mi", "K", "1K"] {
        assert_eq!(text.parse::<Size>(), Err(UnitError::Size(text.into())), "{text:?}");
    }
    for text in ["99999999Ti", "18446744073709551616"] {
        assert_eq!(text.parse::<Size>(), Err(UnitError::SizeTooLarge(text.into())), "{text:?}");
    }
}

#[test]
fn decimals_parse_and_print() {
    for (text, value, printed) in [("2", 2.0, "2"), ("0.75", 0.75, "0.75"), ("4.10", 4.1, "4.1")] {
        let decimal: Decimal = text.parse().expect(text);
        assert_eq!(decimal.get(), value);
        assert_eq!(decimal.to_string(), printed);
    }
    for text in ["", "-1", "1e3", "inf", "NaN", ".5", "5.", "1.2.3", "0x1", "+1"] {
        assert_eq!(text.parse::<Decimal>(), Err(UnitError::Decimal(text.into())), "{text:?}");
    }
}

#[test]
fn a_bare_number_says_what_to_write() {
    let error = serde_json::from_str::<Period>("10").unwrap_err().to_string();
    assert!(error.contains("expected a duration such as 250ms or 10s"), "{error}");
    let error = serde_json::from_str::<Decimal>("0.5").unwrap_err().to_string();
    assert!(error.contains("expected a number in quotes"), "{error}");
    assert_eq!(serde_json::to_string(&Size::from_mebibytes(8)).unwrap(), "\"8Mi\"");
    assert_eq!(serde_json::from_str::<Size>("\"8Mi\"").unwrap(), Size::from_mebibytes(8));
}
