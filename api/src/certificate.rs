//! When certificates are valid: what the control service and the CLI both tell about them.

use yasna::models::{GeneralizedTime, UTCTime};
use yasna::tags::TAG_UTCTIME;
use yasna::{ASN1Error, ASN1Result, BERReader, Tag};

/// From when until when a certificate is valid; seconds since 1970, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub from: i64,
    /// The last second.
    pub until: i64,
}

/// Not a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not an X.509 certificate")]
pub struct NotACertificate;

impl From<ASN1Error> for NotACertificate {
    fn from(_: ASN1Error) -> Self {
        NotACertificate
    }
}

/// Reads when a certificate is valid. Nothing else of it is looked at: whoever uses it checks it.
///
/// # Errors
/// When `der` is not a certificate in DER form.
pub fn validity(der: &[u8]) -> Result<Validity, NotACertificate> {
    let read = yasna::parse_der(der, |certificate| {
        certificate.read_sequence(|parts| {
            let validity = parts.next().read_sequence(|signed| {
                signed.read_optional(|version| version.read_tagged(Tag::context(0), |version| version.read_der()))?;
                // Serial number, algorithm of the signature, issuer.
                for _ in 0..3 {
                    signed.next().read_der()?;
                }
                let validity = signed
                    .next()
                    .read_sequence(|ends| Ok(Validity { from: seconds(ends.next())?, until: seconds(ends.next())? }))?;
                while signed.read_optional(|rest| rest.read_der())?.is_some() {}
                Ok(validity)
            })?;
            // Algorithm and signature.
            parts.next().read_der()?;
            parts.next().read_der()?;
            Ok(validity)
        })
    });
    Ok(read?)
}

/// A time in either of the two forms that certificates have.
fn seconds(time: BERReader<'_, '_>) -> ASN1Result<i64> {
    if time.lookahead_tag()? == TAG_UTCTIME {
        time.read_utctime().map(|time: UTCTime| time.datetime().unix_timestamp())
    } else {
        time.read_generalized_time().map(|time: GeneralizedTime| time.datetime().unix_timestamp())
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn both_forms_of_time_are_read() {
        for (from, until) in [(2020, 2030), (2020, 2080), (2060, 2080)] {
            let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(until, 1, 1));
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            let expected = Validity {
                from: date_time_ymd(from, 1, 1).unix_timestamp(),
                until: date_time_ymd(until, 1, 1).unix_timestamp(),
            };
            assert_eq!(validity(certificate.der()), Ok(expected));
        }
    }

    #[test]
    fn anything_else_is_no_certificate() {
        let certificate = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap().cert;
        let whole = certificate.der();
        for end in 0..whole.len() {
            assert_eq!(validity(&whole[..end]), Err(NotACertificate), "{end}");
        }
    }
}
