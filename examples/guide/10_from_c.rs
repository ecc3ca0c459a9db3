//! # 10. From C to here
//!
//! Each line of a typical C program stands above the line that does the same. docs/guide.md says what is different.
//! Run it with `INTERLOCK_DEVICE=soft0 cargo run --example guide_10_from_c`.
use anyhow::bail;
use interlock::attributes::{InitAttributes, PeerPath, PeerRights, RtrAttributes, RtsAttributes};
use interlock::number::{AckTimeout, ReadDepth, RetryCount, RnrRetry, RnrTimer};
use interlock::{Context, Limits, LocalWrite, Work};
use std::time::Duration;

interlock::domain! { struct FromC; }

fn main() -> anyhow::Result<()> {
    // ibv_get_device_list, ibv_open_device, ibv_free_device_list
    let context = Context::open_default()?;
    // ibv_query_port, ibv_query_gid
    let port = context.active_port()?;
    // pd = ibv_alloc_pd(context)
    let domain = context.named_domain(FromC)?;
    // mr = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE)
    let region = domain.register::<LocalWrite, _>(vec![0_u8; 4096])?;
    // sge = { .addr = memory, .length = 2048, .lkey = mr->lkey }, and another sge for the other half
    let (_rest, whole) = region.split();
    let (mut message, receive) = whole.split_at(2048)?;
    // cq = ibv_create_cq(context, 16, NULL, ibv_create_comp_channel(context), 0)
    let (queue, mut poller) = domain.completion_queue(16)?;
    // qp = ibv_create_qp(pd, { .cap = { .max_send_wr = 4, .max_recv_wr = 4, .. }, .qp_type = IBV_QPT_RC, .. })
    let pair = domain.reliable(&queue, &Limits { sends: 4, receives: 4, ..Limits::default() })?;

    // ibv_modify_qp: IBV_QPS_INIT | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS
    let init = InitAttributes { port: port.clone(), pkey_index: 0, peer_rights: PeerRights::NONE };
    let mut pair = pair.into_init(init)?;
    // ibv_post_recv(qp, { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, &bad_wr)
    let receive_id = pair.post_receive(receive)?;
    // In C, both sides exchange qp_num, PSN, LID, GID and MTU over a TCP socket. Here the pair is its own peer.
    let peer = pair.endpoint();

    // ibv_modify_qp: IBV_QPS_RTR | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | ..
    let pair = pair.into_rtr(&RtrAttributes {
        path: PeerPath { gid: peer.gid(), lid: peer.lid(), ..PeerPath::to(peer.gid().unwrap_or_default()) },
        path_mtu: peer.mtu(),
        destination: peer.queue_pair(),
        receive_psn: peer.psn(),
        responder_depth: ReadDepth::new(1)?,
        min_rnr_timer: RnrTimer::new(12)?,
    })?;
    // ibv_modify_qp: IBV_QPS_RTS | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | ..
    let send_psn = pair.psn();
    let mut pair = pair.into_rts(&RtsAttributes {
        send_psn,
        timeout: AckTimeout::new(14)?,
        retry_count: RetryCount::new(6)?,
        rnr_retry: RnrRetry::FOREVER,
        initiator_depth: ReadDepth::new(1)?,
    })?;

    // strcpy(memory, "from C to here"); sge.length = 14
    message.write(b"from C to here")?;
    // ibv_post_send(qp, { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .. }, &bad_wr)
    let send_id = pair.post_send(message)?;
    for _ in 0..2 {
        // ibv_req_notify_cq, ibv_get_cq_event, ibv_ack_cq_events, ibv_poll_cq
        let completion = poller.wait(Duration::from_secs(5))?;
        let id = completion.id(); // wc.wr_id
        // if (wc.status != IBV_WC_SUCCESS) die(ibv_wc_status_str(wc.status))
        match completion.check()?.into_work() {
            // wc.opcode == IBV_WC_RECV, wc.byte_len
            Work::Received(message) if id == receive_id => println!("{}", String::from_utf8_lossy(&message.buffer)),
            // wc.opcode == IBV_WC_SEND
            Work::Sent(_) if id == send_id => println!("the send has completed"),
            other => bail!("unexpected completion: {other:?}"),
        }
    }
    // ibv_destroy_qp, ibv_destroy_cq, ibv_dereg_mr, ibv_dealloc_pd, ibv_close_device
    Ok(())
}
