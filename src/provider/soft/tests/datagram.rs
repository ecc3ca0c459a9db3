//! Datagrams, address handles, multicast.

use super::{support::address_of, *};
use ibv_wc_status as S;

const DATAGRAM: Settings = Settings { transport: UD, ..SETTINGS };
const QKEY: u32 = SETTINGS.qkey;

fn up(node: &Node, settings: Settings) -> Pair {
    let pair = node.pair_with(settings);
    pair.init().unwrap();
    pair.rtr(pair).unwrap();
    pair.rts().unwrap();
    pair
}

/// Two nodes with a pair each, and the address of the right one.
struct Post {
    fabric: Fabric,
    left: Node,
    right: Node,
    a: Pair,
    b: Pair,
    ah: NonNull<ibv_ah>,
}

impl Post {
    fn new() -> Self {
        Self::on(Fabric::new())
    }

    fn on(fabric: Fabric) -> Self {
        let (left, right) = (Node::new(&fabric, "left"), Node::new(&fabric, "right"));
        let (a, b) = (up(&left, DATAGRAM), up(&right, DATAGRAM));
        let ah = left.address(b.gid);
        Self { fabric, left, right, a, b, ah }
    }

    fn to_right(&self, request: Request) -> Request {
        request.to(self.ah, self.b.qpn(), QKEY)
    }

    fn status(&self, request: Request) -> S {
        self.left.send(self.a, request);
        self.fabric.run();
        let completed = self.left.completed();
        assert_eq!(completed.len(), 1);
        completed[0].1
    }
}

#[test]
fn c157_a_datagram_comes_with_its_header() {
    let post = Post::new();
    let (from, to) = (post.left.memory(8, 0), post.right.memory(16, LOCAL));
    let text: Vec<u8> = (100..164).collect();
    from.set(&text);
    post.right.receive(post.b, 1, &[to.sge(0, 48), to.sge(48, 80)]);
    let request = Request::send(2, &[from.sge(0, 10), from.sge(10, 54)]).immediate(0x0102_0304);
    assert_eq!(post.status(post.to_right(request)), SUCCESS);
    let wc = post.right.poll()[0];
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, SUCCESS, ibv_wc_opcode::IBV_WC_RECV));
    assert_eq!((wc.byte_len, wc.src_qp, wc.qp_num), (104, post.a.qpn(), post.b.qpn()));
    assert_eq!(wc.wc_flags, (ibv_wc_flags::IBV_WC_GRH | ibv_wc_flags::IBV_WC_WITH_IMM).0);
    assert_eq!((wc.slid, wc.sl, wc.pkey_index, wc.dlid_path_bits), (0, 3, 0, 0));
    // SAFETY: the completion has immediate data, as its flag says (checked above).
    assert_eq!(u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }), 0x0102_0304);
    let bytes = to.get(104);
    assert_eq!(bytes[40..], text);
    // The last 20 bytes of the header are an IPv4 header with a correct checksum.
    let ipv4 = &bytes[20..40];
    assert_eq!((ipv4[0], ipv4[1], ipv4[8], ipv4[9]), (0x45, 0x28, 64, 17));
    assert_eq!((&ipv4[12..16], &ipv4[16..20]), (&post.a.gid[12..], &post.b.gid[12..]));
    let sum: u32 = ipv4.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    assert_eq!(bytes[0] >> 4, 6, "the bytes before it look like an IPv6 header");
}

#[test]
fn between_ipv6_addresses_the_header_is_ipv6() {
    let post = Post::new();
    let to = post.right.memory(8, LOCAL);
    let ah = post.left.try_address(post.right.gid(0), 0).unwrap();
    post.right.receive(post.b, 1, &[to.sge(0, 64)]);
    assert_eq!(post.status(Request::send(2, &[]).to(ah, post.b.qpn(), QKEY)), SUCCESS);
    let bytes = to.get(40);
    assert_eq!(bytes[..4], (6_u32 << 28 | 0x28 << 20 | 0xabcde).to_be_bytes());
    assert_eq!((bytes[6], bytes[7]), (17, 64));
    assert_eq!((&bytes[8..24], &bytes[24..40]), (&post.left.gid(0)[..], &post.right.gid(0)[..]));
    assert_eq!(post.right.poll()[0].byte_len, 40);
}

#[test]
fn row_31_a_wrong_key_or_number_is_dropped() {
    let post = Post::new();
    let to = post.right.memory(8, LOCAL);
    post.right.receive(post.b, 1, &[to.sge(0, 64)]);
    assert_eq!(post.status(Request::send(2, &[]).to(post.ah, post.b.qpn(), QKEY + 1)), SUCCESS);
    assert_eq!(post.status(Request::send(3, &[]).to(post.ah, post.b.qpn() + 1, QKEY)), SUCCESS);
    let nobody = post.left.address([9; 16]);
    assert_eq!(post.status(Request::send(4, &[]).to(nobody, post.b.qpn(), QKEY)), SUCCESS);
    let reliable = post.right.pair();
    reliable.connect(reliable);
    post.right.receive(reliable, 9, &[to.sge(0, 64)]);
    assert_eq!(post.status(Request::send(5, &[]).to(post.ah, reliable.qpn(), 0)), SUCCESS);
    assert!(post.right.poll().is_empty());
    assert_eq!(post.status(post.to_right(Request::send(6, &[]))), SUCCESS);
    assert_eq!(post.right.completed(), [(1, SUCCESS)]);
}

#[test]
fn a_key_with_the_highest_bit_stands_for_the_own_one() {
    let post = Post::new();
    let to = post.right.memory(8, LOCAL);
    post.right.receive(post.b, 1, &[to.sge(0, 64)]);
    assert_eq!(post.status(Request::send(2, &[]).to(post.ah, post.b.qpn(), 1 << 31 | 5)), SUCCESS);
    assert_eq!(post.right.completed(), [(1, SUCCESS)]);
}

#[test]
fn without_a_receive_a_datagram_is_dropped() {
    let post = Post::new();
    assert_eq!(post.status(post.to_right(Request::send(1, &[]))), SUCCESS);
    post.right.receive(post.b, 2, &[post.right.memory(8, LOCAL).sge(0, 40)]);
    assert!(post.right.poll().is_empty());
    assert_eq!(post.b.state(), RTS);
    assert_eq!(post.status(post.to_right(Request::send(3, &[]))), SUCCESS);
    assert_eq!(post.right.completed(), [(2, SUCCESS)]);
}

#[test]
fn row_32_a_receive_that_is_at_fault_breaks_its_pair() {
    for (len, access, fault) in [(47, LOCAL, S::IBV_WC_LOC_LEN_ERR), (48, 0, S::IBV_WC_LOC_PROT_ERR)] {
        let post = Post::new();
        let to = post.right.memory(8, access);
        post.right.receive(post.b, 1, &[to.sge(0, len)]);
        post.right.receive(post.b, 2, &[]);
        let request = Request::send(3, &[post.left.memory(1, 0).sge(0, 8)]);
        assert_eq!(post.status(post.to_right(request)), SUCCESS);
        assert_eq!(post.right.completed(), [(1, fault), (2, FLUSHED)]);
        assert_eq!((post.a.state(), post.b.state()), (RTS, ERR));
        assert_eq!(to.get(48), [0; 48]);
    }
}

#[test]
fn a_datagram_has_one_packet() {
    let post = Post::new();
    let (from, to) = (post.left.memory(1024, 0), post.right.memory(1024, LOCAL));
    post.right.receive(post.b, 1, &[to.sge(0, 4136)]);
    assert_eq!(post.status(post.to_right(Request::send(2, &[from.sge(0, 4096)]))), SUCCESS);
    assert_eq!(post.right.poll()[0].byte_len, 4136);
    let long = [from.sge(0, 4096), from.sge(0, 1)];
    assert_eq!(post.status(post.to_right(Request::send(3, &long))), S::IBV_WC_LOC_LEN_ERR);
    assert_eq!(post.a.state(), SQE);
    assert_eq!(post.status(post.to_right(Request::send(4, &[]))), FLUSHED);
    post.a.enter(RTS).unwrap();
    assert_eq!(post.status(post.to_right(Request::send(5, &[]))), SUCCESS);
}

#[test]
fn inline_datagrams_need_no_region() {
    let post = Post::new();
    let to = post.right.memory(8, LOCAL);
    post.right.receive(post.b, 1, &[to.sge(0, 64)]);
    let mut data = *b"inline";
    let sge = ibv_sge { addr: data.as_mut_ptr().expose_provenance() as u64, length: 6, lkey: 0 };
    let request = Request::send(2, &[sge]).flag(ibv_send_flags::IBV_SEND_INLINE);
    assert_eq!(post.status(post.to_right(request)), SUCCESS);
    assert_eq!(to.get(46)[40..], *b"inline");
}

#[test]
fn row_33_an_address_must_be_of_the_pairs_domain_and_alive() {
    let post = Post::new();
    // SAFETY: the context is open.
    let domain = unsafe { Soft.alloc_pd(post.left.context) }.unwrap();
    // SAFETY: the domain is alive.
    let foreign = unsafe { Soft.create_ah(domain, &mut address_of(post.b.gid, 1)) }.unwrap();
    assert_eq!(post.status(Request::send(1, &[]).to(foreign, post.b.qpn(), QKEY)), S::IBV_WC_LOC_QP_OP_ERR);
    assert_eq!(post.a.state(), SQE);
    // SAFETY: the domain is alive. The call is refused while the domain has a child.
    assert_eq!(unsafe { Soft.dealloc_pd(domain) }.unwrap_err().errno(), libc::EBUSY);
    // SAFETY: the address handle is alive, and nobody uses it any more.
    unsafe { Soft.destroy_ah(foreign) }.unwrap();
    // SAFETY: the domain is alive, and nobody uses it any more.
    unsafe { Soft.dealloc_pd(domain) }.unwrap();

    let post = Post::on(Fabric::manual());
    post.left.send(post.a, post.to_right(Request::send(2, &[])));
    let ah = post.left.addresses.borrow_mut().pop().unwrap();
    // SAFETY: the address handle is alive. The request in flight names the handle only by its number.
    unsafe { Soft.destroy_ah(ah) }.unwrap();
    // A new address handle does not get the number of the destroyed one.
    post.left.address(post.b.gid);
    post.fabric.run();
    assert_eq!(post.left.completed(), [(2, S::IBV_WC_LOC_QP_OP_ERR)]);
}

#[test]
fn c160_c161_addresses_have_rules() {
    let post = Post::new();
    let with = |change: fn(&mut ibv_ah_attr)| {
        let mut attributes = address_of([1; 16], 1);
        change(&mut attributes);
        post.left.address_with(&mut attributes).map(|_| ())
    };
    assert_eq!(with(|_| ()), Ok(()));
    assert_eq!(with(|a| a.is_global = 0), Err(libc::EINVAL));
    assert_eq!(with(|a| a.port_num = 2), Err(libc::EINVAL));
    assert_eq!(with(|a| a.grh.sgid_index = 2), Err(libc::ENODATA));
    let no_address = ibv_send_wr { opcode: ibv_wr_opcode::IBV_WR_SEND, ..ibv_send_wr::default() };
    assert_eq!(post.left.post_send(post.a, &mut [no_address]).0, libc::EINVAL);
}

#[test]
fn datagram_pairs_do_nothing_else() {
    let post = Post::new();
    let (local, remote) = (post.left.memory(1, LOCAL), post.right.memory(1, ALL));
    let sges = [local.sge(0, 8)];
    for request in [
        Request::write(1, &sges, &remote, 0),
        Request::read(1, &sges, &remote, 0),
        Request::add(1, &sges, &remote, 0, 1),
        Request::send(1, &sges).invalidating(5),
        Request::invalidate(1, 5),
    ] {
        assert_eq!(post.left.try_send(post.a, post.to_right(request)), libc::EINVAL);
    }
    let window = post.left.window(ibv_mw_type::IBV_MW_TYPE_1);
    let nothing = ibv_mw_bind_info { mr: ptr::null_mut(), addr: 0, length: 0, mw_access_flags: 0 };
    assert_eq!(post.a.bind(1, window, nothing), libc::EINVAL);
}

#[test]
fn a_pair_sends_to_many_and_to_itself() {
    let post = Post::new();
    let to = post.left.memory(8, LOCAL);
    post.left.receive(post.a, 1, &[to.sge(0, 64)]);
    let own = post.left.address(post.a.gid);
    post.left.send(post.a, Request::send(2, &[]).to(own, post.a.qpn(), QKEY));
    assert_eq!(post.left.completed(), [(1, SUCCESS), (2, SUCCESS)]);
}

/// A multicast group with an IPv6 address.
const GROUP: [u8; 16] = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// A multicast group with an IPv4 address.
const GROUP4: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3];

fn attach(pair: Pair, raw: [u8; 16]) -> Result<(), Errno> {
    // SAFETY: the pair is alive: no test uses a pair that it has destroyed.
    unsafe { Soft.attach_mcast(pair.qp, &ibv_gid { raw }, 0) }.map_err(|error| error.errno())
}

fn detach(pair: Pair, raw: [u8; 16]) -> Result<(), Errno> {
    // SAFETY: the pair is alive: no test uses a pair that it has destroyed.
    unsafe { Soft.detach_mcast(pair.qp, &ibv_gid { raw }, 0) }.map_err(|error| error.errno())
}

#[test]
fn c162_each_member_of_a_group_gets_one() {
    for group in [GROUP, GROUP4] {
        let post = Post::new();
        let other = up(&post.right, Settings { qkey: QKEY + 1, ..DATAGRAM });
        let second = up(&post.right, DATAGRAM);
        for pair in [post.b, other, second, post.a] {
            attach(pair, group).unwrap();
        }
        attach(post.b, group).unwrap();
        let to = post.right.memory(8, LOCAL);
        for (pair, id) in [(post.b, 1), (post.b, 2), (other, 3), (second, 4)] {
            post.right.receive(pair, id, &[to.sge(0, 64)]);
        }
        post.left.receive(post.a, 5, &[post.left.memory(8, LOCAL).sge(0, 64)]);
        let ah = post.left.address(group);
        post.left.send(post.a, Request::send(6, &[]).to(ah, 0xff_ffff, QKEY));
        assert_eq!(post.right.completed(), [(1, SUCCESS), (4, SUCCESS)], "one each, where the key fits");
        assert_eq!(post.left.completed(), [(5, SUCCESS), (6, SUCCESS)], "the sender is a member too");
        detach(post.b, group).unwrap();
        post.left.send(post.a, Request::send(7, &[]).to(ah, 0xff_ffff, QKEY));
        post.left.send(post.a, Request::send(8, &[]).to(ah, post.b.qpn(), QKEY));
        assert!(post.right.poll().is_empty(), "left the group, or is named beside it");
        for pair in [other, second, post.a] {
            detach(pair, group).unwrap();
        }
    }
}

#[test]
fn c141_c163_groups_have_rules() {
    let post = Post::new();
    let link = Link::automatic();
    assert_eq!(attach(link.a, GROUP), Err(libc::EINVAL), "not a datagram pair");
    assert_eq!(attach(post.b, post.b.gid), Err(libc::EINVAL), "not a group");
    assert_eq!(detach(post.b, GROUP), Err(libc::EINVAL), "not in it");
    attach(post.b, GROUP).unwrap();
    assert_eq!(detach(post.a, GROUP), Err(libc::EINVAL), "not in it");
    assert_eq!(post.right.destroy(post.b), Err(libc::EBUSY));
    detach(post.b, GROUP).unwrap();
    assert_eq!(detach(post.b, GROUP), Err(libc::EINVAL));
    post.right.destroy(post.b).unwrap();
    // SAFETY: the context is open.
    let limits = unsafe { Soft.query_device(post.left.context) }.unwrap();
    let mut members = Vec::new();
    for _ in 0..limits.max_mcast_qp_attach {
        let pair = post.left.pair_with(DATAGRAM);
        attach(pair, GROUP4).unwrap();
        members.push(pair);
    }
    assert_eq!(attach(post.a, GROUP4), Err(libc::ENOMEM));
    members.into_iter().for_each(|pair| detach(pair, GROUP4).unwrap());
}

#[test]
fn the_default_partition_is_the_only_one() {
    let node = Node::new(&Fabric::new(), "one");
    // SAFETY: the context is open.
    let key = |port, index| unsafe { Soft.query_pkey(node.context, port, index) }.map_err(|error| error.errno());
    assert_eq!((key(1, 0), key(1, 1), key(2, 0)), (Ok(0xffff), Err(libc::EINVAL), Err(libc::EINVAL)));
}
