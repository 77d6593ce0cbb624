//! Numbers with units, as people write them.

use std::time::Duration;

/// A duration with its unit, such as `10s`, `200ms` or `1h 30m`.
///
/// # Errors
///
/// What is wrong, and what to write.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    if text.parse::<f64>().is_ok() {
        return Err(format!("a duration needs a unit; write \"{text}s\" or \"{text}ms\""));
    }
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write a duration such as \"10s\", \"200ms\" or \"5m\""))
}

/// A size in bytes with its unit, such as `64MiB`; a bare number is bytes.
///
/// # Errors
///
/// What is wrong, and what to write.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u32); 5] = [("", 0), ("B", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30)];

    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text[digits.len()..].trim();
    let shift = UNITS.into_iter().find_map(|(name, shift)| (name == unit).then_some(shift));
    let number = digits.trim().parse::<u64>().ok();
    shift
        .zip(number)
        .and_then(|(shift, number)| number.checked_mul(1 << shift))
        .ok_or_else(|| "write a size such as \"64MiB\" (the units are KiB, MiB and GiB)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5_400)));
        for bare in ["10", "0", "1.5"] {
            let error = duration(bare).unwrap_err();
            assert!(error.contains(&format!("\"{bare}s\" or \"{bare}ms\"")), "{error}");
        }
        for wrong in ["", "10 parsecs", "-1s", "s"] {
            assert!(duration(wrong).unwrap_err().contains("\"10s\""), "{wrong}");
        }
    }

    #[test]
    fn sizes_may_have_units() {
        assert_eq!(bytes("4096"), Ok(4_096));
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("1 GiB"), Ok(1 << 30));
        for wrong in ["", "MiB", "64MB", "-1", "1.5GiB", "99999999999GiB"] {
            assert!(bytes(wrong).unwrap_err().contains("\"64MiB\""), "{wrong}");
        }
    }
}
