# SPDX-License-Identifier: MIT
"""A network namespace for each node, with an address of its own, and a bridge to the servers, which stay outside."""
import fcntl
import os
import socket
import struct

from process import Unavailable, call

SERVER = "192.0.2.1"
BRIDGE = "cairn"

# netdevice(7)
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def set_link(name, up):
    """By no other process: between fork and exec it would close what this one has open on a mount, and wait for the
    very link that it is to set up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        told = fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sH14x", name.encode(), 0))
        flags = struct.unpack("16sH14x", told)[1]
        flags = flags | IFF_UP if up else flags & ~IFF_UP
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", name.encode(), flags))


class Node:
    """What runs with `within` before its words has the node's network."""

    def __init__(self, top, number):
        self.number, self.link = number, f"node{number}"
        space = f"{top}/net-{number}"
        with open(space, "wb"):
            pass
        call("unshare", f"--net={space}", "ip", "link", "set", "lo", "up")
        self.within = ("nsenter", f"--net={space}")
        call(*self.within, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", self.link,
             "netns", str(os.getpid()))
        call(*self.within, "ip", "address", "add", f"192.0.2.{10 + number}/24", "dev", "eth0")
        call(*self.within, "ip", "link", "set", "eth0", "up")
        call("ip", "link", "set", self.link, "master", BRIDGE, "up")

    def down(self):
        """As if its cable were pulled; no connection is told."""
        set_link(self.link, False)

    def up(self):
        set_link(self.link, True)


class Network:
    def __init__(self, top):
        self.top, self.nodes = top, {}

    def start(self):
        try:
            call("ip", "link", "set", "lo", "up")
            call("ip", "link", "add", BRIDGE, "type", "bridge")
            call("ip", "address", "add", f"{SERVER}/24", "dev", BRIDGE)
            call("ip", "link", "set", BRIDGE, "up")
            self.node(0)
        except RuntimeError as err:
            raise Unavailable(f"no network of namespaces: {err}") from err

    def node(self, number):
        if number not in self.nodes:
            self.nodes[number] = Node(self.top, number)
        return self.nodes[number]
