//! The subject of a certificate, as ZooKeeper writes it: RFC 2253, the last part first.
//!
//! A certificate is DER: a tag, a length, the content, one inside the other. Only as much of it is
//! read as leads to the subject; whether the certificate is any good was decided before.

use std::fmt::Write as _;

/// The parts that have names; the others are written as their numbers. Java knows just these.
const NAMES: &[(&[u8], &str)] = &[
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 9], "STREET"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25], "DC"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1], "UID"),
];

mod tag {
    pub(super) const INTEGER: u8 = 0x02;
    pub(super) const OBJECT_ID: u8 = 0x06;
    pub(super) const UTF8: u8 = 0x0c;
    pub(super) const PRINTABLE: u8 = 0x13;
    pub(super) const T61: u8 = 0x14;
    pub(super) const IA5: u8 = 0x16;
    pub(super) const UNIVERSAL: u8 = 0x1c;
    pub(super) const BMP: u8 = 0x1e;
    pub(super) const SEQUENCE: u8 = 0x30;
    pub(super) const SET: u8 = 0x31;
    pub(super) const VERSION: u8 = 0xa0;
}

/// The subject of a certificate; `None` if it can't be read.
pub(super) fn subject(certificate: &[u8]) -> Option<String> {
    let mut outer = certificate;
    let mut certificate = take(&mut outer, tag::SEQUENCE)?;
    let mut content = take(&mut certificate, tag::SEQUENCE)?;
    if content.first() == Some(&tag::VERSION) {
        take(&mut content, tag::VERSION)?;
    }
    take(&mut content, tag::INTEGER)?;
    // The algorithm, the issuer, and from when until when.
    for _ in 0..3 {
        take(&mut content, tag::SEQUENCE)?;
    }
    let mut subject = take(&mut content, tag::SEQUENCE)?;
    let mut parts = Vec::new();
    while !subject.is_empty() {
        parts.push(part(take(&mut subject, tag::SET)?)?);
    }
    parts.reverse();
    Some(parts.join(","))
}

/// One part, of one or more names and values.
fn part(mut set: &[u8]) -> Option<String> {
    let mut values = Vec::new();
    while !set.is_empty() {
        let mut pair = take(&mut set, tag::SEQUENCE)?;
        let kind = take(&mut pair, tag::OBJECT_ID)?;
        let whole = pair;
        let (tag, value) = any(&mut pair)?;
        let name = NAMES.iter().find(|(id, _)| *id == kind).map(|(_, name)| *name);
        values.push(match (name, text(tag, value)) {
            (Some(name), Some(text)) => format!("{name}={}", escaped(&text)),
            (name, _) => {
                let mut written = name.map_or_else(|| numbers(kind), str::to_owned);
                written.push_str("=#");
                for byte in whole {
                    let _ = write!(written, "{byte:02x}");
                }
                written
            }
        });
    }
    Some(values.join("+"))
}

/// The content of the next thing, which has this tag.
fn take<'a>(input: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    any(input).filter(|(found, _)| *found == tag).map(|(_, content)| content)
}

/// The next thing: its tag, and its content.
fn any<'a>(input: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&tag, rest) = input.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let length = if first < 0x80 {
        usize::from(first)
    } else {
        let (bytes, behind) = rest.split_at_checked(usize::from(first & 0x7f))?;
        // More than four bytes of length are no certificate; none would mean an open end.
        if bytes.is_empty() || bytes.len() > 4 {
            return None;
        }
        rest = behind;
        bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
    };
    let (content, behind) = rest.split_at_checked(length)?;
    *input = behind;
    Some((tag, content))
}

/// `None` for what isn't text.
fn text(tag: u8, value: &[u8]) -> Option<String> {
    match tag {
        tag::UTF8 | tag::PRINTABLE | tag::IA5 => String::from_utf8(value.to_vec()).ok(),
        tag::T61 => Some(value.iter().copied().map(char::from).collect()),
        tag::BMP => {
            let units = value.chunks(2).map(|pair| Some(u16::from_be_bytes(pair.try_into().ok()?)));
            String::from_utf16(&units.collect::<Option<Vec<_>>>()?).ok()
        }
        tag::UNIVERSAL => value
            .chunks(4)
            .map(|four| char::from_u32(u32::from_be_bytes(four.try_into().ok()?)))
            .collect(),
        _ => None,
    }
}

fn escaped(text: &str) -> String {
    let mut written = String::new();
    let last = text.chars().count().saturating_sub(1);
    for (at, c) in text.chars().enumerate() {
        let at_an_end = at == 0 && (c == ' ' || c == '#') || at == last && c == ' ';
        if at_an_end || ",+\"\\<>;".contains(c) {
            written.push('\\');
        }
        written.push(c);
    }
    written
}

/// `1.2.840.113549.1.9.1`.
fn numbers(id: &[u8]) -> String {
    let mut numbers = Vec::new();
    let mut number: u128 = 0;
    for byte in id {
        number = number << 7 | u128::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            if numbers.is_empty() {
                let first = (number / 40).min(2);
                numbers.push(first);
                number -= first * 40;
            }
            numbers.push(number);
            number = 0;
        }
    }
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    use super::*;

    fn certificate(parts: &[(DnType, &str)]) -> Vec<u8> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in parts {
            let value = DnValue::Utf8String((*value).to_owned());
            params.distinguished_name.push(kind.clone(), value);
        }
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn the_last_part_comes_first() {
        let shown = certificate(&[
            (DnType::CountryName, "SE"),
            (DnType::OrganizationName, "Ünit, Inc."),
            (DnType::CustomDnType(vec![1, 2, 840, 113_549, 1, 9, 1]), "a@b"),
            (DnType::CommonName, "client"),
        ]);
        let expected = "CN=client,1.2.840.113549.1.9.1=#0c03614062,O=Ünit\\, Inc.,C=SE";
        assert_eq!(subject(&shown).as_deref(), Some(expected));
        assert_eq!(subject(&certificate(&[])).as_deref(), Some(""));
    }

    #[test]
    fn what_is_cut_has_no_subject_or_the_same() {
        let shown = certificate(&[(DnType::CommonName, "client")]);
        for cut in 0..shown.len() {
            assert_eq!(subject(&shown[..cut]), None, "cut at {cut}");
        }
        for at in 0..shown.len() {
            for byte in [0, 0x7f, 0x80, 0x84, 0xff] {
                let mut bent = shown.clone();
                bent[at] = byte;
                let _ = subject(&bent);
            }
        }
    }

    #[test]
    fn what_means_something_is_escaped() {
        assert_eq!(escaped(" a#b "), "\\ a#b\\ ");
        assert_eq!(escaped("#a=b"), "\\#a=b");
        assert_eq!(escaped("a,b+c\"d\\e<f>g;"), "a\\,b\\+c\\\"d\\\\e\\<f\\>g\\;");
        assert_eq!(escaped(" "), "\\ ");
        assert_eq!(numbers(&[0x55, 4, 3]), "2.5.4.3");
        assert_eq!(numbers(&[0xff; 40]), "");
    }
}
