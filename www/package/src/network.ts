// Addresses in normal form, and the networks that count as one caller. The crate's `access::Network` does the same, and both read
// tests/vectors/addresses.
import { TollgateError } from "./errors.js";

/**
 * A text for the network of an address, the same for all its addresses: IPv4 in IPv6 is IPv4, and of IPv6 the first
 * `ipv6Prefix` bits count, 32 or more.
 */
export function networkOf(ip: string, ipv6Prefix: number): string {
  const groups = groupsOf(ip);
  if (!groups) throw new TollgateError("ip_malformed", MALFORMED);
  const isIpv4 = groups.length === 2 || IPV4_IN_IPV6.test(`${groups}`);
  if (isIpv4) return groups.slice(-2).join(".");
  const count = Math.ceil(ipv6Prefix / 16);
  groups.length = count;
  groups[count - 1]! &= 0xffff << (count * 16 - ipv6Prefix);
  return groups.map((group) => group.toString(16)).join(":");
}

/** The 8 groups of 16 bits of an IPv6 address, or the 2 of an IPv4 address; nothing if it is neither. */
function groupsOf(ip: string): number[] | undefined {
  const ipv4 = ipv4Of(ip);
  if (ipv4) return ipv4;
  const [head, tail, more] = ip.replace(ZONE, "").split("::");
  const last = groupsIn(tail ?? head!, true);
  const first = tail === undefined ? [] : groupsIn(head!, false);
  if (!first || !last || more !== undefined) return undefined;
  const missing = 8 - first.length - last.length;
  if (tail === undefined ? missing !== 0 : missing < 1) return undefined;
  return [...first, ...Array<number>(missing).fill(0), ...last];
}

/** The groups on one side of `::`. The last two may be written as an IPv4 address. */
function groupsIn(text: string, mayEndInIpv4: boolean): number[] | undefined {
  const groups: number[] = [];
  if (text === "") return groups;
  const parts = text.split(":");
  for (const [i, part] of parts.entries()) {
    const ipv4 = mayEndInIpv4 && i === parts.length - 1 ? ipv4Of(part) : undefined;
    if (ipv4) groups.push(...ipv4);
    else if (GROUP.test(part)) groups.push(Number.parseInt(part, 16));
    else return undefined;
  }
  return groups;
}

function ipv4Of(text: string): number[] | undefined {
  if (!IPV4.test(text)) return undefined;
  const [a, b, c, d] = text.split(".").map(Number);
  return [a! * 256 + b!, c! * 256 + d!];
}

/** Without leading zeros, which some parsers read as octal. */
const IPV4 = /^(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(?:\.(?=\d)|$)){4}$/;
const GROUP = /^[\da-f]{1,4}$/i;
/** It names an interface of this host. Node adds it to link-local addresses. */
const ZONE = /%[\w.~-]+$/;
/**
 * Mapped, as sockets for both write IPv4, or with the well-known prefix of NAT64 (RFC 6052); but not 0.0.0.0 there, which no host has:
 * `64:ff9b::` is how the network around the prefix begins.
 */
const IPV4_IN_IPV6 = /^0,0,0,0,0,65535,|^100,65435,0,0,0,0,(?!0,0$)/;
const MALFORMED =
  'ip must be one IP address, such as "192.0.2.1" or "2001:db8::1", without a port, brackets, a prefix length or leading zeros';
