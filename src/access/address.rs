//! Addresses in canonical form, and the networks that count as one caller.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// The addresses that count as one caller: an IPv4 address, or the first bits of an IPv6 address.
///
/// Every subscriber has a whole IPv6 network, by convention at least a /64. With whole addresses as keys, one caller has 2⁶⁴ budgets. Use
/// this as the key to limit addresses.
///
/// ```
/// use tollgate::keyed::Network;
///
/// let network = |address: &str| Network::of(address.parse().unwrap(), 64);
/// assert_eq!(network("2001:db8::1"), network("2001:db8::2"));
/// assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1")); // how a dual-stack socket writes IPv4
/// assert_eq!(network("2001:db8:0:0:1::").to_string(), "2001:db8::/64");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    first: IpAddr,
    prefix: u8,
}

impl Network {
    /// The network of `address`: for IPv6, the first `ipv6_prefix` bits. IPv4 in IPv6 (`::ffff:192.0.2.1`, and `64:ff9b::192.0.2.1` behind
    /// a NAT64) is IPv4.
    #[must_use]
    pub fn of(address: IpAddr, ipv6_prefix: u8) -> Self {
        match canonical(address) {
            first @ IpAddr::V4(_) => Self { first, prefix: 32 },
            IpAddr::V6(address) => {
                let prefix = ipv6_prefix.min(128);
                let host_bits = 128_u32.saturating_sub(prefix.into());
                let network = address.to_bits() & u128::MAX.checked_shl(host_bits).unwrap_or(0);
                Self { first: IpAddr::V6(network.into()), prefix }
            }
        }
    }

    /// The network's first address.
    #[must_use]
    pub const fn first(&self) -> IpAddr {
        self.first
    }

    /// The prefix length in bits.
    #[must_use]
    pub const fn prefix(&self) -> u8 {
        self.prefix
    }
}

/// An IPv4 address alone, or an IPv6 network with its prefix.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(address) => write!(f, "{address}/{}", self.prefix),
        }
    }
}

/// Converts IPv4-in-IPv6 to IPv4: mapped, or with the well-known prefix of NAT64 (RFC 6052).
pub(super) fn canonical(address: IpAddr) -> IpAddr {
    let IpAddr::V6(address) = address else { return address };
    if let Some(mapped) = address.to_ipv4_mapped() {
        return mapped.into();
    }
    match address.segments() {
        // Not 0.0.0.0, which no host has: `64:ff9b::` is the first address of the prefix itself.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] if (high, low) != (0, 0) => {
            let [.., a, b, c, d] = address.octets();
            [a, b, c, d].into()
        }
        _ => address.into(),
    }
}

/// Parses an address in any of the spellings of RFC 4291 §2.2, with nothing around it. The zone of an IPv6 address, which only names an
/// interface of the host that wrote it, is dropped.
pub(crate) fn parse(text: &str) -> Result<IpAddr, AddressError> {
    let address = match text.split_once('%') {
        Some((address, zone)) if is_zone(zone) => address.parse::<Ipv6Addr>().map(IpAddr::V6),
        _ => text.parse(),
    };
    address.map(canonical).map_err(|_| mistake(text))
}

/// The characters that RFC 6874 allows in a zone.
fn is_zone(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte))
}

/// Why an address does not parse.
fn mistake(text: &str) -> AddressError {
    let is_v4 = |text: &str| text.parse::<std::net::Ipv4Addr>().is_ok();
    let has_leading_zero = |text: &str| {
        let octets: Vec<_> = text.split('.').collect();
        let is_octet = |octet: &&str| !octet.is_empty() && octet.bytes().all(|byte| byte.is_ascii_digit());
        octets.len() == 4
            && octets.iter().all(is_octet)
            && octets.iter().any(|octet| octet.len() > 1 && octet.starts_with('0'))
    };
    let port = text.rsplit_once(':').filter(|(host, _)| is_v4(host) || has_leading_zero(host));
    if text.starts_with('[') || port.is_some() {
        AddressError::Port
    } else if text.contains('%') {
        AddressError::Zone
    } else if text.contains('/') {
        AddressError::Subnet
    } else if text.rsplit(':').next().is_some_and(has_leading_zero) {
        AddressError::LeadingZero
    } else {
        AddressError::Unreadable
    }
}

/// Why a text is not an address. The messages are about the key that has it as `ip`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressError {
    /// It has a port, or the brackets that a port needs.
    Port,
    /// It has a zone, and is not an IPv6 address or the zone is not a name.
    Zone,
    /// It has a prefix length.
    Subnet,
    /// One of its numbers starts with a zero, which some parsers read as octal.
    LeadingZero,
    /// It is not an address.
    Unreadable,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port => f.write_str("has an `ip` with a port or brackets: give the address alone"),
            Self::Zone => {
                f.write_str("has an `ip` with a zone (%...) that only an IPv6 address may have, as in \"fe80::1%eth0\"")
            }
            Self::Subnet => f.write_str(
                "has an `ip` with a prefix length: give one address; the policy's `ipv6_prefix` says how much counts",
            ),
            Self::LeadingZero => f.write_str(
                "has an `ip` with a leading zero, which some read as octal: write 192.0.2.1, not 192.0.2.01",
            ),
            Self::Unreadable => {
                f.write_str("has an `ip` that is not an IP address such as \"192.0.2.1\" or \"2001:db8::1\"")
            }
        }
    }
}

impl std::error::Error for AddressError {}

#[cfg(all(test, feature = "service"))]
mod tests {
    use serde::Deserialize;

    use super::super::Key;
    use super::*;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        #[serde(rename = "about")]
        _about: String,
        networks: Vec<Row>,
        refused: Vec<Refused>,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Row {
        ip: String,
        ipv6_prefix: Option<u8>,
        network: String,
        #[serde(default, rename = "why")]
        _why: String,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Refused {
        ip: String,
        error: String,
    }

    fn vectors() -> File {
        serde_json::from_str(include_str!("../../tests/vectors/addresses/networks.json")).unwrap()
    }

    /// The npm package reads the same rows.
    #[test]
    fn every_vector_has_its_network_however_the_key_is_built() {
        for Row { ip, ipv6_prefix, network, .. } in vectors().networks {
            let prefix = ipv6_prefix.unwrap_or(64);
            let address = parse(&ip).unwrap_or_else(|error| panic!("{ip}: {error}"));
            let found = Network::of(address, prefix);
            assert_eq!(found.to_string(), network, "{ip}");
            assert_eq!(Network::of(found.first(), prefix), found, "{ip}: a network is that of its first address");
            // An address parsed elsewhere is not canonical yet.
            let elsewhere: IpAddr = ip.split('%').next().unwrap().parse().unwrap();
            assert_eq!(Network::of(elsewhere, prefix), found, "{ip}");
            assert_eq!(Key::Ip(elsewhere).to_bytes(prefix), Key::Ip(address).to_bytes(prefix), "{ip}");
        }
    }

    #[test]
    fn any_other_text_is_refused_with_the_reason() {
        for Refused { ip, error } in vectors().refused {
            let found = parse(&ip).expect_err(&ip);
            assert_eq!(format!("{found:?}"), error, "{ip}");
        }
    }

    #[test]
    fn a_prefix_longer_than_an_address_is_the_whole_address() {
        let address = "2001:db8::1".parse().unwrap();
        assert_eq!(Network::of(address, 200), Network::of(address, 128));
        assert_eq!(Network::of(address, 128).to_string(), "2001:db8::1/128");
        assert_eq!(Network::of(address, 0).to_string(), "::/0");
    }
}
