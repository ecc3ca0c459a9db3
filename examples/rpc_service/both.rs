//! Both ends in one process, with everything that can go wrong. Each part checks its numbers.

use crate::place::Place;
use crate::rpc::{CallError, Client, ClientReport, Server, ServerReport};
use crate::service::Service;
use crate::{PATIENCE, say};
use anyhow::{Context as _, ensure};
use interlock::Brand;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

const CLIENTS: usize = 8;
const TASKS: usize = 4;
const CALLS: usize = 25; // of each task
/// Long enough for a request to arrive. Its answer is held for longer.
const GIVE_UP: Duration = Duration::from_secs(5);

/// Calls, and checks the answer.
pub(crate) async fn ask(client: &Client, question: &str) -> anyhow::Result<()> {
    let answer = client.call(question.as_bytes(), PATIENCE).await.with_context(|| format!("{question:?}"))?;
    ensure!(answer == question.to_ascii_uppercase().as_bytes(), "a wrong answer to {question:?}");
    Ok(())
}

pub(crate) async fn run<B: Brand + 'static>(place: &Arc<Place<B>>, at: SocketAddr) -> anyhow::Result<()> {
    let service = Service::new();
    let listener = place.listen(at).await?;
    let at = listener.address()?;
    let mut server = Server::start(place, listener, service.handler());
    let clients: Vec<_> = (0..CLIENTS).map(|_| Arc::new(Client::start(place, at))).collect();

    many_calls(&clients).await.context("calls")?;
    timeouts(&service, &clients[0]).await.context("timeouts")?;
    crash(place, &service, (&mut server, at), &clients).await.context("crash")?;
    let first = shutdown(&service, server, &clients).await.context("shutdown")?;
    let (server, attempts) = reconnect(place, &service, at, &clients).await.context("reconnect")?;

    let mut reports = Vec::new();
    for client in clients {
        reports.push(Arc::into_inner(client).context("a task still has a client")?.close(PATIENCE).await);
    }
    let second = server.shut_down(PATIENCE).await;
    at_the_end(&first, &second, &reports)?;
    let buffers = place.is_empty(PATIENCE).await?;
    say(format!(
        "end        all {buffers} buffers are home; {attempts} attempts to connect failed, while nobody listened"
    ));
    Ok(())
}

/// Several tasks of each client call at the same time.
async fn many_calls(clients: &[Arc<Client>]) -> anyhow::Result<()> {
    let (mut tasks, before) = (JoinSet::new(), Instant::now());
    for (number, client) in clients.iter().enumerate() {
        for task in 0..TASKS {
            let client = Arc::clone(client);
            tasks.spawn(async move {
                for call in 0..CALLS {
                    ask(&client, &format!("call {call} of task {task} of client {number}")).await?;
                }
                anyhow::Ok(())
            });
        }
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let count = clients.len() * TASKS * CALLS;
    say(format!("calls      {count} were answered, of {} clients in {:.2?}", clients.len(), before.elapsed()));
    Ok(())
}

/// Calls that give up. Their answers come late, and do no harm.
async fn timeouts(service: &Service, client: &Arc<Client>) -> anyhow::Result<()> {
    service.close_gate();
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        let client = Arc::clone(client);
        tasks.spawn(async move { client.call(format!("hold {number}").as_bytes(), GIVE_UP).await });
    }
    ensure!(service.holds(TASKS, PATIENCE).await, "the requests did not arrive");
    while let Some(ended) = tasks.join_next().await {
        let given_up = ended?;
        ensure!(given_up == Err(CallError::TimedOut(GIVE_UP)), "{given_up:?}");
    }
    ask(client, "meanwhile").await?;
    service.open_gate();
    let deadline = Instant::now() + PATIENCE;
    while client.report().late < TASKS as u64 && Instant::now() < deadline {
        sleep(Duration::from_millis(1)).await;
    }
    ask(client, "afterwards").await?;
    let late = client.report().late;
    ensure!(late == TASKS as u64, "{late} late answers");
    say(format!("timeouts   {TASKS} calls gave up, and {late} late answers were dropped"));
    Ok(())
}

/// Calls that are held. They are in flight when this returns.
async fn hold(service: &Service, clients: &[Arc<Client>]) -> anyhow::Result<Vec<JoinHandle<anyhow::Result<()>>>> {
    service.close_gate();
    let held = |client: &Arc<Client>| {
        let client = Arc::clone(client);
        tokio::spawn(async move { ask(&client, "hold this").await })
    };
    let calls: Vec<_> = clients.iter().map(held).collect();
    ensure!(service.holds(calls.len(), PATIENCE).await, "the requests did not arrive");
    Ok(calls)
}

/// A client crashes with a call in flight. The others do not notice.
async fn crash<B: Brand + 'static>(
    place: &Arc<Place<B>>,
    service: &Service,
    (server, at): (&mut Server, SocketAddr),
    clients: &[Arc<Client>],
) -> anyhow::Result<()> {
    let mortal = Arc::new(Client::start(place, at));
    for call in hold(service, &[Arc::clone(&mortal)]).await? {
        call.abort();
        ensure!(call.await.is_err_and(|error| error.is_cancelled()), "the call was answered");
    }
    drop(Arc::into_inner(mortal).context("a task still has the client")?);
    for client in clients {
        ask(client, "is anything wrong?").await?;
    }
    timeout(PATIENCE, server.has_served(1)).await.context("the server did not notice")?;
    service.open_gate();
    say(format!("crash      1 client went with a call in flight; the {} others were answered", clients.len()));
    Ok(())
}

/// The server shuts down while calls are in flight, which are answered.
async fn shutdown(service: &Service, server: Server, clients: &[Arc<Client>]) -> anyhow::Result<ServerReport> {
    let calls = hold(service, clients).await?;
    let (report, ()) = tokio::join!(server.shut_down(PATIENCE), async {
        // The gate opens only during the shutdown, so the server has to wait for the answers to the calls.
        sleep(Duration::from_millis(50)).await;
        service.open_gate();
    });
    let count = calls.len();
    for call in calls {
        call.await??;
    }
    say(format!("shutdown   {count} calls in flight were answered"));
    Ok(report)
}

/// Calls that are made while there is no server are answered by the next one.
async fn reconnect<B: Brand + 'static>(
    place: &Arc<Place<B>>,
    service: &Arc<Service>,
    at: SocketAddr,
    clients: &[Arc<Client>],
) -> anyhow::Result<(Server, u64)> {
    let early = |client: &Arc<Client>| {
        let client = Arc::clone(client);
        tokio::spawn(async move { ask(&client, "is there another server?").await })
    };
    let calls: Vec<_> = clients.iter().map(early).collect();
    // Wait until a client has tried to connect in vain.
    let failed = || clients.iter().map(|client| client.report().failed_connects).sum::<u64>();
    let deadline = Instant::now() + PATIENCE;
    while failed() == 0 && Instant::now() < deadline {
        sleep(Duration::from_millis(1)).await;
    }
    ensure!(calls.iter().all(|call| !call.is_finished()), "a call was answered without a server");
    let server = Server::start(place, place.listen(at).await?, service.handler());
    let count = calls.len();
    for call in calls {
        call.await??;
    }
    say(format!("reconnect  {count} clients connected to the next server, and were answered"));
    Ok((server, failed()))
}

/// Compares what the two servers and the clients have counted.
fn at_the_end(first: &ServerReport, second: &ServerReport, clients: &[ClientReport]) -> anyhow::Result<()> {
    let crashed = first.clients.iter().filter(|client| client.broken.is_some()).count();
    let unanswered: usize = first.clients.iter().map(|client| client.unanswered).sum();
    ensure!((crashed, unanswered) == (1, 1), "{crashed} clients crashed with {unanswered} requests");
    // The sum of the calls in `many_calls`, in `timeouts` (`TASKS` held ones and two others), in `crash` and in
    // `shutdown`.
    let expected = CLIENTS * TASKS * CALLS + TASKS + 2 + CLIENTS + CLIENTS;
    let answered: u64 = first.clients.iter().map(|client| client.answered).sum();
    ensure!(answered == expected as u64, "the first server gave {answered} answers, not {expected}");
    let answered: u64 = second.clients.iter().map(|client| client.answered).sum();
    ensure!(answered == CLIENTS as u64, "the second server gave {answered} answers, not {CLIENTS}");
    ensure!(first.clients.len() == CLIENTS + 1 && second.clients.len() == CLIENTS, "{first:?} {second:?}");
    ensure!(second.clients.iter().all(|client| client.broken.is_none() && client.unanswered == 0), "{second:?}");
    ensure!(first.clients.iter().chain(&second.clients).all(|client| client.has_drained), "{first:?} {second:?}");
    for client in clients {
        ensure!((client.connects, client.byes) == (2, 1) && client.broken.is_empty(), "{client:?}");
        ensure!(client.undrained == 0, "{client:?}");
    }
    Ok(())
}
