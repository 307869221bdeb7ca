//! Communicators
//!
//! Collectives between ranks: threads of a process, processes of a machine or of several, each with a device of its own (torch.cuda.nccl,
//! and what torch.distributed does with NCCL). NCCL carries the data; it is looked up at the first of these calls. On simulated devices
//! sockets do, between threads and processes of one machine.
//!
//! All ranks make the same calls in the same order. A call is enqueued on a stream of the rank's device (NULL: its current stream) and returns
//! before it is done; calls of one communicator go on in the order in which they are made, also on different streams. Tensors lie packed on the
//! rank's device; input and output may be the same memory where they are of one size. Elements are moved whatever they are, and reduced if they
//! lie on a multiple of their size and are floats (but float8), integers of 8, 32 and 64 bits, bools (a sum is their or, a product their and) or
//! complex (sum and average). A tensor without elements is no call at all.
//!
//! No call waits longer for other ranks than the communicator's timeout; wait for results with
//! tcuda_communicator_synchronize, which also sees a rank that ended. What goes wrong then (TCUDA_ERROR_TIMEOUT, TCUDA_ERROR_REMOTE,
//! TCUDA_ERROR_NCCL and errors of the device) aborts the communicator: its streams go on, outputs of calls under way hold anything, every later
//! call gives the same error, and only tcuda_communicator_destroy takes it. A call that is refused (TCUDA_ERROR_INVALID_ARGUMENT and the like)
//! changes nothing. docs/COMM.md.

use super::guard::{Out, guard, guard_destroy, guard_out, null, slice};
use super::structs::{self, tcuda_stream_t};
use super::tensor::view;
use crate::base::dlpack::tcuda_tensor_t;
use crate::base::status::tcuda_status_t;
use crate::base::{Error, Result};
use crate::communicator::{self, Communicator, Ends, Options};
use crate::runtime::collective::{Call, ID_BYTES, Reduction};
use crate::stream;
use crate::tensor::View;
use std::sync::Arc;
use std::time::Duration;

/// Only ever a pointer to it.
#[allow(non_camel_case_types)]
pub enum tcuda_communicator {}
/// A rank of a communicator. Not a pointer to anything.
#[allow(non_camel_case_types)]
pub type tcuda_communicator_t = *mut tcuda_communicator;

/// What makes ranks find each other (ncclUniqueId). It may be copied and sent as bytes.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_communicator_id_t {
    pub bytes: [u8; 128],
}
const _: () = assert!(size_of::<tcuda_communicator_id_t>() == ID_BYTES);

/// Set it to TCUDA_COMMUNICATOR_OPTIONS_INIT; NULL stands for that.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_communicator_options_t {
    pub struct_size: usize,
    /// Milliseconds that a call waits for other ranks; 0: 600,000, torch's ten minutes.
    pub timeout_ms: u32,
    /// 1: the communicator is given out while it still looks for its other ranks, so that one thread can make several.
    /// tcuda_communicator_query tells when it has them; its first call waits for them.
    pub non_blocking: i32,
    /// 1: calls wait within NCCL, as is NCCL's default: they cost less, and no timeout holds in them, but for tcuda_communicator_synchronize and
    /// tcuda_communicator_destroy. Not together with non_blocking.
    pub nccl_blocking: i32,
    /// 0.
    pub reserved: i32,
}
structs::input!(tcuda_communicator_options_t: timeout_ms, non_blocking, nccl_blocking, reserved);
impl Default for tcuda_communicator_options_t {
    /// TCUDA_COMMUNICATOR_OPTIONS_INIT.
    fn default() -> Self {
        let struct_size = size_of::<tcuda_communicator_options_t>();
        tcuda_communicator_options_t { struct_size, timeout_ms: 0, non_blocking: 0, nccl_blocking: 0, reserved: 0 }
    }
}
const _: () = assert!(size_of::<tcuda_communicator_options_t>() == 24);

// The header has them by hand.
pub const TCUDA_REDUCE_SUM: i32 = 0;
pub const TCUDA_REDUCE_PRODUCT: i32 = 1;
pub const TCUDA_REDUCE_MAX: i32 = 2;
pub const TCUDA_REDUCE_MIN: i32 = 3;
pub const TCUDA_REDUCE_AVERAGE: i32 = 4;

fn reduction(op: i32) -> Result<Reduction> {
    let all = [Reduction::Sum, Reduction::Product, Reduction::Max, Reduction::Min, Reduction::Average];
    all.into_iter().find(|known| *known as i32 == op).ok_or_else(|| {
        Error::invalid_argument(format!(
            "'op' is {op}. It is one of TCUDA_REDUCE_SUM (0), _PRODUCT (1), _MAX (2), _MIN (3) and _AVERAGE (4)."
        ))
    })
}

unsafe fn options(options: *const tcuda_communicator_options_t) -> Result<Options> {
    const DEFAULT_MS: u32 = 600_000;
    let given = unsafe { structs::read(options, "options") }?;
    let (timeout_ms, flags) = given.map_or((0, [0, 0]), |given| (given.timeout_ms, [given.non_blocking, given.nccl_blocking]));
    if flags.iter().any(|flag| !(0..=1).contains(flag)) || flags == [1, 1] {
        return Err(Error::invalid_argument(format!(
            "'options.non_blocking' is {} and 'options.nccl_blocking' {}; each is 0 or 1, and not both are 1.",
            flags[0], flags[1]
        )));
    }
    let timeout = Duration::from_millis(if timeout_ms == 0 { DEFAULT_MS } else { timeout_ms }.into());
    Ok(Options { timeout, non_blocking: flags[0] == 1, nccl_blocking: flags[1] == 1 })
}

fn named(comm: tcuda_communicator_t) -> Result<Arc<Communicator>> {
    communicator::named(comm as usize)
}

fn hand_out(made: Arc<Communicator>) -> tcuda_communicator_t {
    communicator::insert(made) as tcuda_communicator_t
}

/// NULL is none.
unsafe fn optional(tensor: *const tcuda_tensor_t, name: &str) -> Result<Option<View>> {
    if tensor.is_null() { Ok(None) } else { unsafe { view(tensor, name) }.map(Some) }
}

/// A call with the tensors that this rank needs: others are not looked at.
unsafe fn make(
    comm: tcuda_communicator_t,
    call: Call,
    output: *const tcuda_tensor_t,
    input: *const tcuda_tensor_t,
    stream: tcuda_stream_t,
) -> Result<()> {
    let comm = named(comm)?;
    let (reads, writes) = call.ends(comm.place()?.0);
    let [input_name, output_name] = call.names();
    let output = if writes { unsafe { optional(output, output_name) }? } else { None };
    let input = if reads { unsafe { optional(input, input_name) }? } else { None };
    communicator::call(&comm, call, Ends { output: output.as_ref(), input: input.as_ref() }, stream as usize)
}

/// The version of NCCL (torch.cuda.nccl.version): 22809 is 2.28.9; 0 on simulated devices.
///
/// @return TCUDA_ERROR_NOT_SUPPORTED: there is no NCCL, or an older one than 2.14; the message says where it was looked for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_version(version: *mut i32) -> tcuda_status_t {
    guard_out("tcuda_communicator_version", version, "version", communicator::version)
}

/// An id for a new communicator (torch.cuda.nccl.unique_id). One rank makes it and the others are told it; each id makes one communicator.
/// NCCL's holds an address of the process that made it, which has to live until all ranks have found each other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_unique_id(id: *mut tcuda_communicator_id_t) -> tcuda_status_t {
    guard_out("tcuda_communicator_unique_id", id, "id", || Ok(tcuda_communicator_id_t { bytes: communicator::unique_id()? }))
}

/// Makes one rank of a communicator (torch.cuda.nccl.init_rank); the others do the same with the same id. Waits for all of them.
///
/// @param comm      gets the rank; tcuda_communicator_destroy ends it.
/// @param size      how many ranks there are.
/// @param id        of tcuda_communicator_unique_id.
/// @param rank      from 0 on; each is there once.
/// @param device    -1: the current one. Two ranks on one device do not work: NCCL refuses them, and so do simulated devices
///                  (TCUDA_ERROR_INVALID_ARGUMENT).
/// @param options   may be NULL.
/// @return TCUDA_ERROR_TIMEOUT: the others did not come; nothing is left. TCUDA_ERROR_REMOTE: another rank of this process gave up or ended.
/// TCUDA_ERROR_INVALID_STATE: within a group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_init_rank(
    comm: *mut tcuda_communicator_t,
    size: i32,
    id: *const tcuda_communicator_id_t,
    rank: i32,
    device: i32,
    options: *const tcuda_communicator_options_t,
) -> tcuda_status_t {
    guard_out("tcuda_communicator_init_rank", comm, "comm", || {
        let id = unsafe { id.as_ref() }.ok_or_else(|| null("id"))?;
        let options = unsafe { self::options(options) }?;
        Ok(hand_out(communicator::init_rank(size, &id.bytes, rank, device, options)?))
    })
}

/// Makes all ranks of a communicator in this process (ncclCommInitAll). Where one thread makes the calls of several ranks, they stand in a group.
///
/// @param comms     gets `count` ranks, in the order of the devices; tcuda_communicator_destroy ends each.
/// @param devices   indices, each once; -1 is none.
/// @param count     devices; 0 does nothing.
/// @param options   may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_init_all(
    comms: *mut tcuda_communicator_t,
    devices: *const i32,
    count: usize,
    options: *const tcuda_communicator_options_t,
) -> tcuda_status_t {
    guard("tcuda_communicator_init_all", || {
        let outs = Out::new(comms, "comms")?;
        let options = unsafe { self::options(options) }?;
        let made = communicator::init_all(unsafe { slice(devices, count, "devices") }?, options)?;
        outs.write_all(made.into_iter().map(hand_out));
        Ok(())
    })
}

/// Makes this process' rank of a job whose launcher has set RANK, WORLD_SIZE, LOCAL_RANK (the device), MASTER_ADDR and MASTER_PORT, as torchrun
/// does. Rank 0 listens on that port until all have come, by plain TCP that anyone may connect to, on all of its addresses where MASTER_ADDR is a
/// name (but localhost), as torch's store does; TCUDA_COMMUNICATOR_PORT names another port where that one is taken. Names are looked up by the
/// system, for as long as that takes.
///
/// @param comm      gets the rank; tcuda_communicator_destroy ends it.
/// @param options   may be NULL. The timeout is that of finding rank 0, and again that of tcuda_communicator_init_rank.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: a variable is missing or wrong. TCUDA_ERROR_TIMEOUT: the message names the ranks that did not come.
///         TCUDA_ERROR_SYSTEM: rank 0 cannot listen.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_init_from_env(
    comm: *mut tcuda_communicator_t,
    options: *const tcuda_communicator_options_t,
) -> tcuda_status_t {
    guard_out("tcuda_communicator_init_from_env", comm, "comm", || {
        let options = unsafe { self::options(options) }?;
        Ok(hand_out(communicator::init_from_env(options)?))
    })
}

/// Makes communicators of parts of the ranks (ncclCommSplit). All ranks make this call, and wait for each other.
///
/// @param part      gets this rank in its part, with this one's timeout; tcuda_communicator_destroy ends it. NULL for a negative color.
/// @param color     ranks with the same come together; negative: with nobody. INT32_MAX is none.
/// @param key       gives their order; ranks with equal keys stay in theirs.
/// @param options   may be NULL; only `non_blocking` counts. It goes with a color only; calls of the part are TCUDA_ERROR_NOT_READY until
///                  tcuda_communicator_query says that it is ready.
/// @return TCUDA_ERROR_NOT_SUPPORTED: NCCL before 2.18. TCUDA_ERROR_TIMEOUT and the like: ranks did not come, or failed, and `comm` itself was aborted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_split(
    part: *mut tcuda_communicator_t,
    comm: tcuda_communicator_t,
    color: i32,
    key: i32,
    options: *const tcuda_communicator_options_t,
) -> tcuda_status_t {
    guard_out("tcuda_communicator_split", part, "part", || {
        let options = unsafe { self::options(options) }?;
        let made = named(comm)?.split((color >= 0).then_some(color), key, options.non_blocking)?;
        Ok(made.map_or(std::ptr::null_mut(), hand_out))
    })
}

/// Ends a rank when its calls are done, for which it waits. One that was aborted, or has not found the others, ends at once.
/// tcuda_communicator_abort by another thread cuts the wait short; it is the only call that takes the handle meanwhile.
///
/// @return TCUDA_ERROR_TIMEOUT, TCUDA_ERROR_REMOTE and the like: calls were cut off. The handle has ended all the same.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_communicator_destroy(comm: tcuda_communicator_t) -> tcuda_status_t {
    guard_destroy("tcuda_communicator_destroy", comm, || communicator::destroy(comm as usize))
}

/// Ends whatever a rank is at (ncclCommAbort): its streams go on, and threads that wait in calls of it come back with
/// TCUDA_ERROR_INVALID_STATE, also from a group, whose other communicators end with it. The other ranks hear of it: those of this process
/// in the call that they wait in, or in their next one, as TCUDA_ERROR_REMOTE; others sooner or later, and a call that they are at may end with
/// success and anything in its output. So end all ranks when one has failed. The handle stays until tcuda_communicator_destroy.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_communicator_abort(comm: tcuda_communicator_t) -> tcuda_status_t {
    guard("tcuda_communicator_abort", || communicator::abort(comm as usize))
}

/// How a rank is (ncclCommGetAsyncError): success while nothing went wrong. Waits for nothing.
///
/// @param ready   gets false while it looks for the other ranks, or another thread waits in a call of it but tcuda_communicator_synchronize.
/// @return what went wrong.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_query(comm: tcuda_communicator_t, ready: *mut bool) -> tcuda_status_t {
    guard_out("tcuda_communicator_query", ready, "ready", || named(comm)?.query())
}

/// Waits for a stream's work, as tcuda_stream_synchronize does, and looks meanwhile whether the rank's calls can come to an end: when another rank
/// failed, the device is lost, or the time is over, the communicator is aborted, also under a thread that waits in a call of it.
///
/// @param stream       NULL: the current stream of the rank's device.
/// @param timeout_ms   0: the communicator's.
/// @return TCUDA_ERROR_TIMEOUT, TCUDA_ERROR_REMOTE, TCUDA_ERROR_NCCL: it was aborted, and outputs hold anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_synchronize(
    comm: tcuda_communicator_t,
    stream: tcuda_stream_t,
    timeout_ms: u32,
) -> tcuda_status_t {
    guard("tcuda_communicator_synchronize", || {
        let comm = named(comm)?;
        let handle = if stream.is_null() { stream::HANDLE_CURRENT } else { stream as usize };
        let timeout = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms.into()));
        comm.synchronize(stream::resolve_on(handle, comm.device)?, timeout)
    })
}

/// Which rank this is. TCUDA_ERROR_NOT_READY: a part of a split that is not over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_rank(comm: tcuda_communicator_t, rank: *mut i32) -> tcuda_status_t {
    guard_out("tcuda_communicator_rank", rank, "rank", || Ok(named(comm)?.place()?.0))
}

/// How many ranks there are. TCUDA_ERROR_NOT_READY: a part of a split that is not over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_size(comm: tcuda_communicator_t, size: *mut i32) -> tcuda_status_t {
    guard_out("tcuda_communicator_size", size, "size", || Ok(named(comm)?.place()?.1))
}

/// The device of this rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_device(comm: tcuda_communicator_t, device: *mut i32) -> tcuda_status_t {
    guard_out("tcuda_communicator_device", device, "device", || Ok(named(comm)?.device))
}

/// Begins a group of this thread: until its end, calls of communicators are checked and kept, and nothing is enqueued. Groups may lie within each
/// other; the outermost counts. Needed where one thread makes the calls of several ranks, and for sends and receives that depend on each other.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_communicator_group_start() -> tcuda_status_t {
    guard("tcuda_communicator_group_start", communicator::group_start)
}

/// Ends a group: its calls are enqueued, together. They may not build on each other, and tensors and streams have to be there until now.
///
/// @return TCUDA_ERROR_INVALID_STATE: no group was begun. TCUDA_ERROR_INVALID_ARGUMENT: nothing was enqueued, and nothing has changed. What else
///         goes wrong, also that one of its communicators has ended before, ends all communicators of the group.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_communicator_group_end() -> tcuda_status_t {
    guard("tcuda_communicator_group_end", communicator::group_end)
}

/// Reduces the inputs of all ranks, and gives the result to all (ncclAllReduce). On simulated devices from rank 0 to the last, halves in
/// float32 and rounded once; NCCL's order is its own.
///
/// @param output   of the input's size.
/// @param op       TCUDA_REDUCE_SUM, _PRODUCT, _MAX, _MIN or _AVERAGE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_all_reduce(
    comm: tcuda_communicator_t,
    output: *const tcuda_tensor_t,
    input: *const tcuda_tensor_t,
    op: i32,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_communicator_all_reduce", || unsafe { make(comm, Call::AllReduce(reduction(op)?), output, input, stream) })
}

/// Puts the inputs of all ranks side by side, in the order of the ranks, and gives that to all (ncclAllGather).
///
/// @param output   of as many times the input's size as there are ranks. The input may be this rank's part of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_all_gather(
    comm: tcuda_communicator_t,
    output: *const tcuda_tensor_t,
    input: *const tcuda_tensor_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_communicator_all_gather", || unsafe { make(comm, Call::AllGather, output, input, stream) })
}

/// Reduces the inputs of all ranks, and gives each rank its part of the result (ncclReduceScatter).
///
/// @param input   of as many times the output's size as there are ranks. The output may be this rank's part of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_reduce_scatter(
    comm: tcuda_communicator_t,
    output: *const tcuda_tensor_t,
    input: *const tcuda_tensor_t,
    op: i32,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_communicator_reduce_scatter", || unsafe { make(comm, Call::ReduceScatter(reduction(op)?), output, input, stream) })
}

/// Gives the root's input to all ranks (ncclBroadcast).
///
/// @param input   the root's; not looked at on other ranks, where it may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_broadcast(
    comm: tcuda_communicator_t,
    output: *const tcuda_tensor_t,
    input: *const tcuda_tensor_t,
    root: i32,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_communicator_broadcast", || unsafe { make(comm, Call::Broadcast { root }, output, input, stream) })
}

/// Reduces the inputs of all ranks, and gives the result to the root (ncclReduce).
///
/// @param output   the root's; not looked at on other ranks, where it may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_reduce(
    comm: tcuda_communicator_t,
    output: *const tcuda_tensor_t,
    input: *const tcuda_tensor_t,
    op: i32,
    root: i32,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_communicator_reduce", || unsafe { make(comm, Call::Reduce { reduction: reduction(op)?, root }, output, input, stream) })
}

/// Gives each rank its part of each rank's input (ncclAlltoAll): part r of the output is what rank r had for this one.
///
/// @param output   of the input's size, which the ranks share evenly. The two have to be apart.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_all_to_all(
    comm: tcuda_communicator_t,
    output: *const tcuda_tensor_t,
    input: *const tcuda_tensor_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_communicator_all_to_all", || unsafe { make(comm, Call::AllToAll, output, input, stream) })
}

/// Sends a tensor to a rank, which receives one of as many bytes (ncclSend). A rank that sends to itself receives in the same group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_send(
    comm: tcuda_communicator_t,
    tensor: *const tcuda_tensor_t,
    peer: i32,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_communicator_send", || unsafe { make(comm, Call::Send { peer }, std::ptr::null(), tensor, stream) })
}

/// Receives a tensor from a rank (ncclRecv).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_recv(
    comm: tcuda_communicator_t,
    tensor: *const tcuda_tensor_t,
    peer: i32,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_communicator_recv", || unsafe { make(comm, Call::Recv { peer }, tensor, std::ptr::null(), stream) })
}
