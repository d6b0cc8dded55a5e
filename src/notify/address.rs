//! Restricts requests to public addresses. The check is part of name resolution at
//! request time, so that a name cannot be rebound after it was checked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use thiserror::Error;

#[derive(Debug, Error)]
#[error("the address is private; set allow_private = true to permit it")]
pub(super) struct PrivateAddressError;

/// Resolves names to public addresses only.
pub(super) struct PublicResolver;

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let resolved = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let public: Vec<SocketAddr> = resolved.filter(|found| is_public(found.ip())).collect();
            if public.is_empty() {
                return Err(PrivateAddressError.into());
            }
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

/// Whether an address is on the public internet: not loopback, private, link-local,
/// carrier-grade NAT, multicast, reserved, benchmarking or documentation.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => match v6.to_ipv4() {
            // Mapped and compatible addresses reach the IPv4 address.
            Some(v4) => is_public_v4(v4),
            None => is_public_v6(v6),
        },
    }
}

fn is_public_v4(v4: Ipv4Addr) -> bool {
    let [a, b, ..] = v4.octets();
    let shared = a == 100 && (64..128).contains(&b);
    let benchmark = a == 198 && (18..20).contains(&b);
    !(v4.is_private()
        || v4.is_loopback()
        || v4.is_link_local()
        || v4.is_multicast()
        || v4.is_documentation()
        || a == 0
        || a >= 240
        || shared
        || benchmark)
}

fn is_public_v6(v6: Ipv6Addr) -> bool {
    let [a, b, ..] = v6.segments();
    // NAT64 (64:ff9b::/96) and 6to4 addresses may embed any IPv4 address.
    let translated = (a == 0x64 && b == 0xff9b) || a == 0x2002;
    let documentation = a == 0x2001 && b == 0xdb8;
    !(v6.is_loopback()
        || v6.is_unspecified()
        || v6.is_multicast()
        || v6.is_unique_local()
        || v6.is_unicast_link_local()
        || translated
        || documentation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_distinguished_from_public_ones() {
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "198.18.0.1",
            "224.0.0.1",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "::ffff:10.0.0.1",
            "::7f00:1",
            "64:ff9b::a00:1",
            "2002:a00:1::",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
        for public in [
            "1.1.1.1",
            "8.8.8.8",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1111",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }
}
