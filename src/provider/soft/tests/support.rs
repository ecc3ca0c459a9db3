//! Requests, and helpers for the objects that not every test has.

use super::*;

/// A send-side request.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) opcode: ibv_wr_opcode,
    pub(super) flags: u32,
    pub(super) sges: Vec<ibv_sge>,
    pub(super) immediate: u32,
    pub(super) remote: (u64, u32),
    pub(super) compare_add: u64,
    pub(super) swap: u64,
    /// For a datagram: its address handle, the queue pair number and the Q_Key.
    pub(super) to: Option<(NonNull<ibv_ah>, u32, u32)>,
    pub(super) bind: Option<ibv_send_wr__bindgen_ty_4__bindgen_ty_1>,
}

impl Request {
    pub(super) fn new(id: u64, opcode: ibv_wr_opcode, sges: &[ibv_sge]) -> Self {
        let flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        let sges = sges.to_vec();
        Self { id, opcode, flags, sges, immediate: 0, remote: (0, 0), compare_add: 0, swap: 0, to: None, bind: None }
    }

    pub(super) fn send(id: u64, sges: &[ibv_sge]) -> Self {
        Self::new(id, ibv_wr_opcode::IBV_WR_SEND, sges)
    }

    pub(super) fn write(id: u64, sges: &[ibv_sge], to: &Region, offset: u64) -> Self {
        Self::new(id, ibv_wr_opcode::IBV_WR_RDMA_WRITE, sges).at(to.addr().wrapping_add(offset), to.rkey())
    }

    pub(super) fn read(id: u64, sges: &[ibv_sge], from: &Region, offset: u64) -> Self {
        Self::new(id, ibv_wr_opcode::IBV_WR_RDMA_READ, sges).at(from.addr().wrapping_add(offset), from.rkey())
    }

    pub(super) fn add(id: u64, sges: &[ibv_sge], to: &Region, offset: u64, value: u64) -> Self {
        let request = Self::new(id, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, sges);
        Self { compare_add: value, ..request.at(to.addr().wrapping_add(offset), to.rkey()) }
    }

    pub(super) fn swap(id: u64, sges: &[ibv_sge], to: &Region, compare: u64, swap: u64) -> Self {
        let request = Self::new(id, ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, sges);
        Self { compare_add: compare, swap, ..request.at(to.addr(), to.rkey()) }
    }

    pub(super) fn at(self, addr: u64, rkey: u32) -> Self {
        Self { remote: (addr, rkey), ..self }
    }

    pub(super) fn immediate(self, immediate: u32) -> Self {
        let opcode = if self.opcode == ibv_wr_opcode::IBV_WR_SEND {
            ibv_wr_opcode::IBV_WR_SEND_WITH_IMM
        } else {
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
        };
        Self { opcode, immediate: immediate.to_be(), ..self }
    }

    pub(super) fn flag(self, flag: ibv_send_flags) -> Self {
        Self { flags: self.flags | flag.0, ..self }
    }

    pub(super) fn unsignaled(self) -> Self {
        Self { flags: self.flags & !ibv_send_flags::IBV_SEND_SIGNALED.0, ..self }
    }

    pub(super) fn raw(&self, sges: &mut [ibv_sge]) -> ibv_send_wr {
        let mut wr = ibv_send_wr {
            wr_id: self.id,
            sg_list: sges.as_mut_ptr(),
            num_sge: sges.len() as i32,
            opcode: self.opcode,
            send_flags: self.flags,
            ..ibv_send_wr::default()
        };
        wr.__bindgen_anon_1.imm_data = self.immediate;
        let (remote_addr, rkey) = self.remote;
        if let Some(bind_mw) = self.bind {
            wr.__bindgen_anon_2.bind_mw = bind_mw;
        }
        match self.opcode {
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP | ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let (compare_add, swap) = (self.compare_add, self.swap);
                wr.wr.atomic = ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, compare_add, swap, rkey };
            }
            _ => wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey },
        }
        if let Some((ah, remote_qpn, remote_qkey)) = self.to {
            wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah: ah.as_ptr(), remote_qpn, remote_qkey };
        }
        wr
    }
}

impl Node {
    /// A shared receive queue for `max_wr` receives of at most four entries each.
    pub(super) fn shared(&self, max_wr: u32) -> NonNull<ibv_srq> {
        let attr = ibv_srq_attr { max_wr, max_sge: 4, srq_limit: 0 };
        let mut attributes = ibv_srq_init_attr { attr, ..ibv_srq_init_attr::default() };
        // SAFETY: the domain is alive.
        let srq = unsafe { Soft.create_srq(self.domain, &mut attributes) }.unwrap();
        self.queues.borrow_mut().push(srq);
        srq
    }

    /// A pair that takes its receives from `srq`.
    pub(super) fn pair_on(&self, srq: NonNull<ibv_srq>, settings: Settings) -> Pair {
        let qp_type = settings.transport;
        let attributes = ibv_qp_init_attr { srq: srq.as_ptr(), qp_type, ..self.init_attributes() };
        Pair { qp: self.create(attributes).unwrap(), gid: self.gid(1), settings }
    }

    /// Posts one receive to a shared queue.
    pub(super) fn share(&self, srq: NonNull<ibv_srq>, id: u64, sges: &[ibv_sge]) -> Errno {
        let mut sges = sges.to_vec();
        let mut wr = receive_wr(id, &mut sges);
        let mut bad = ptr::null_mut();
        let post = self.ops().post_srq_recv.unwrap();
        // SAFETY: the queue is alive: no test uses a shared queue that it has destroyed. `wr` is a list of one request.
        // The device writes only to registered memory, and a node keeps the memory of its regions until the node is
        // dropped.
        let errno = unsafe { post(srq.as_ptr(), &mut wr, &mut bad) };
        assert_eq!(errno != 0, ptr::eq(bad, &wr));
        errno
    }

    pub(super) fn window(&self, kind: ibv_mw_type) -> NonNull<ibv_mw> {
        self.window_in(self.domain, kind)
    }

    pub(super) fn window_in(&self, domain: NonNull<ibv_pd>, kind: ibv_mw_type) -> NonNull<ibv_mw> {
        // SAFETY: the domain is alive.
        let window = unsafe { Soft.alloc_mw(domain, kind) }.unwrap();
        self.windows.borrow_mut().push(window);
        window
    }

    /// An address handle for a GID. The source is the GID at index `row` of the node's table.
    pub(super) fn try_address(&self, gid: [u8; 16], row: u8) -> Result<NonNull<ibv_ah>, Errno> {
        self.address_with(&mut address_of(gid, row))
    }

    pub(super) fn address_with(&self, attributes: &mut ibv_ah_attr) -> Result<NonNull<ibv_ah>, Errno> {
        // SAFETY: the domain is alive.
        let address = unsafe { Soft.create_ah(self.domain, attributes) }.map_err(|error| error.errno())?;
        self.addresses.borrow_mut().push(address);
        Ok(address)
    }

    pub(super) fn address(&self, gid: [u8; 16]) -> NonNull<ibv_ah> {
        self.try_address(gid, 1).unwrap()
    }

    /// Takes the node's events, as numbers that tests can compare: the kind, and the object (for a pair, its number).
    pub(super) fn events(&self) -> Vec<(ibv_event_type, u32)> {
        let mut all = Vec::new();
        while let Some(event) = self.take_async() {
            let subject = match event.event_type {
                // SAFETY: an `IBV_EVENT_CQ_ERR` sets the member `cq`.
                ibv_event_type::IBV_EVENT_CQ_ERR => u32::from(unsafe { event.element.cq } == self.cq.as_ptr()),
                ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED => {
                    // SAFETY: an `IBV_EVENT_SRQ_LIMIT_REACHED` sets the member `srq`.
                    let srq = unsafe { event.element.srq };
                    self.queues.borrow().iter().position(|known| known.as_ptr() == srq).unwrap() as u32
                }
                ibv_event_type::IBV_EVENT_PORT_ERR | ibv_event_type::IBV_EVENT_PORT_ACTIVE => {
                    // SAFETY: an event of a port sets the member `port_num`.
                    unsafe { event.element.port_num as u32 }
                }
                ibv_event_type::IBV_EVENT_DEVICE_FATAL => 0,
                _ => {
                    // SAFETY: the other events are about a pair: `IBV_EVENT_QP_*`, `IBV_EVENT_COMM_EST` and
                    // `IBV_EVENT_SQ_DRAINED`. The device sets the member `qp` in them.
                    let qp = unsafe { event.element.qp };
                    // SAFETY: the device drops the events of a pair when the pair is destroyed, so the pair of this
                    // event is alive.
                    unsafe { (*qp).qp_num }
                }
            };
            all.push((event.event_type, subject));
        }
        all
    }

    pub(super) fn take_async(&self) -> Option<ibv_async_event> {
        // SAFETY: the context is open.
        unsafe { Soft.take_async_event(self.context) }.unwrap()
    }
}

pub(super) fn address_of(gid: [u8; 16], row: u8) -> ibv_ah_attr {
    let mut attributes = ibv_ah_attr { is_global: 1, port_num: 1, sl: 3, ..ibv_ah_attr::default() };
    attributes.grh.dgid = ibv_gid { raw: gid };
    attributes.grh.sgid_index = row;
    attributes.grh.hop_limit = 64;
    attributes.grh.traffic_class = 0x28;
    attributes.grh.flow_label = 0xabcde;
    attributes
}

pub(super) fn rkey_of(window: NonNull<ibv_mw>) -> u32 {
    // SAFETY: the window is alive: no test uses a window that it has freed.
    unsafe { (*window.as_ptr()).rkey }
}

/// The memory and the rights of a bind.
pub(super) fn bind_info(region: &Region, offset: u64, length: u64, access: u32) -> ibv_mw_bind_info {
    let addr = region.addr().wrapping_add(offset);
    ibv_mw_bind_info { mr: region.mr.as_ptr(), addr, length, mw_access_flags: access }
}

impl Request {
    pub(super) fn to(self, address: NonNull<ibv_ah>, qpn: u32, qkey: u32) -> Self {
        Self { to: Some((address, qpn, qkey)), ..self }
    }

    /// A request that binds a window of type 2 with its next key. It also stores the new key in the window, as C
    /// programs do.
    pub(super) fn bind(id: u64, window: NonNull<ibv_mw>, bind_info: ibv_mw_bind_info) -> Self {
        let rkey = inline::ibv_inc_rkey(rkey_of(window));
        // SAFETY: the window is alive: no test uses a window that it has freed. Each test runs in one thread.
        unsafe { (*window.as_ptr()).rkey = rkey };
        let bind = ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw: window.as_ptr(), rkey, bind_info };
        Self { bind: Some(bind), ..Self::new(id, ibv_wr_opcode::IBV_WR_BIND_MW, &[]) }
    }

    pub(super) fn invalidate(id: u64, rkey: u32) -> Self {
        Self { immediate: rkey, ..Self::new(id, ibv_wr_opcode::IBV_WR_LOCAL_INV, &[]) }
    }

    /// Turns a send into one that invalidates a key of the peer.
    pub(super) fn invalidating(self, rkey: u32) -> Self {
        Self { opcode: ibv_wr_opcode::IBV_WR_SEND_WITH_INV, immediate: rkey, ..self }
    }
}

impl Pair {
    /// Calls `ibv_bind_mw` for a window of type 1.
    pub(super) fn bind(self, id: u64, window: NonNull<ibv_mw>, bind_info: ibv_mw_bind_info) -> Errno {
        let send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        let mut bind = ibv_mw_bind { wr_id: id, send_flags, bind_info };
        // SAFETY: the window is alive: no test uses a window that it has freed.
        let ibv_mw { context, pd, type_, .. } = unsafe { window.read() };
        // In C, `ibv_bind_mw` is an inline function that makes these checks before it calls the provider.
        let is_empty = bind_info.addr == 0 && bind_info.length == 0;
        if type_ != ibv_mw_type::IBV_MW_TYPE_1 || bind_info.mr.is_null() && !is_empty {
            return libc::EINVAL;
        }
        // SAFETY: `mr` is not null (checked first). It points to a registered region, because no test binds a window of
        // type 1 to a region that has ended.
        if !bind_info.mr.is_null() && pd != unsafe { (*bind_info.mr).pd } {
            return libc::EPERM;
        }
        // SAFETY: the window is alive, so its context is open.
        let bind_mw = unsafe { (*context).ops.bind_mw }.unwrap();
        // SAFETY: the pair and the window are alive, and nobody else uses the window.
        unsafe { bind_mw(self.qp.as_ptr(), window.as_ptr(), &mut bind) }
    }
}

/// A pair that is connected to itself, taken through the transitions to `state`.
pub(super) fn in_state(node: &Node, transport: ibv_qp_type, state: ibv_qp_state) -> Pair {
    let pair = node.pair_with(Settings { transport, ..SETTINGS });
    if state != RESET {
        pair.init().unwrap();
    }
    if [RTR, RTS, SQD, SQE].contains(&state) {
        pair.rtr(pair).unwrap();
    }
    if [RTS, SQD, SQE].contains(&state) {
        pair.rts().unwrap();
    }
    if state == SQE {
        let bad = Request::send(1, &[ibv_sge { addr: 8, length: 8, lkey: 1 }]);
        let bad = if transport == UD { bad.to(node.address(pair.gid), pair.qpn(), 0) } else { bad };
        node.send(pair, bad);
        node.poll();
    }
    if [SQD, ERR].contains(&state) {
        pair.enter(state).unwrap();
    }
    assert_eq!(pair.state(), state);
    pair
}

/// The required attributes of a transition.
pub(super) fn to_state(pair: Pair, from: ibv_qp_state, to: ibv_qp_state) -> (ibv_qp_attr, u32) {
    match (from, to) {
        (RESET, INIT) => pair.init_with(),
        (_, RTR) => pair.rtr_with(pair),
        (RTR | INIT | RESET, RTS) => pair.rts_with(),
        _ => (ibv_qp_attr { qp_state: to, ..ibv_qp_attr::default() }, ibv_qp_attr_mask::IBV_QP_STATE.0),
    }
}
