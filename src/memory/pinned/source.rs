//! Memory from the driver and back: cudaHostAlloc, or pages of the kernel that are put on a NUMA node, touched and registered.

use super::core::CORE;
use super::space::Segment;
use super::table::{self, Class};
use crate::base::{Error, Result, Status};
use crate::device;
use crate::memory::options::{Node, Options};
use crate::runtime::{self, Address, Runtime, host};
use std::sync::OnceLock;
use std::time::Instant;

/// cudaHostAllocPortable, and cudaHostRegisterPortable: pinned for every context.
pub(super) const PORTABLE: u32 = 1;

/// The node that memory for the calling thread's current device is put on. 0 on a machine with one node, where nothing has to be put.
pub fn wanted_node(node: Node) -> u32 {
    if host::nodes().len() == 1 && !matches!(node, Node::Given(_)) {
        return 0;
    }
    match node {
        Node::Given(node) => node,
        Node::Any => 0,
        Node::Device => node_of_current_device().unwrap_or(0),
    }
}

fn node_of_current_device() -> Option<u32> {
    /// By device: the kernel is asked once for each.
    static NODES: OnceLock<Vec<OnceLock<Option<u32>>>> = OnceLock::new();
    let count = runtime::runtime().ok()?.device_count;
    let nodes = NODES.get_or_init(|| (0..count).map(|_| OnceLock::new()).collect());
    let device = device::current().ok()?;
    let node = nodes.get(device as usize)?;
    if let Some(node) = node.get() {
        return *node;
    }
    let at = device::properties(device).ok()?;
    *node.get_or_init(|| host::node_of_pci(&format!("{:04x}:{:02x}:{:02x}.0", at.pci_domain_id, at.pci_bus_id, at.pci_device_id)))
}

/// Asks the driver for something of the host, which is no device's: on one that has a context, and whatever is captured.
pub(super) fn driver<T>(ask: impl FnOnce(&Runtime) -> Result<T>) -> Result<T> {
    let runtime = runtime::runtime()?;
    let _guard = device::Guard::new(device::with_context()?)?;
    runtime.outside_capture(|| ask(runtime))
}

/// Whether memory of this node has to be put there.
fn binds(node: Node) -> bool {
    match node {
        Node::Any => false,
        Node::Device => host::nodes().len() > 1,
        Node::Given(node) => host::nodes() != [node],
    }
}

/// New memory. An error of status OUT_OF_MEMORY: neither the driver nor the kernel has any.
pub fn obtain(size: usize, class: Class, options: &Options) -> Result<(Address, Segment)> {
    let started = Instant::now();
    let registered = options.pinned_use_cuda_host_register || binds(options.pinned_numa_node);
    let address =
        driver(|runtime| if registered { register_pages(runtime, size, class, options) } else { runtime.host_alloc(size, PORTABLE) })?;
    let segment = Segment { size, class, registered };
    if address.saturating_add(size) > table::LIMIT || !address.is_multiple_of(table::UNIT) {
        driver(|runtime| release(runtime, address, &segment))?;
        return Err(Error::not_supported(format!("Pinned memory at {address:#x} lies outside of what tcuda keeps books of.")));
    }
    CORE.lock().note_time(started.elapsed(), true);
    Ok((address, segment))
}

fn register_pages(runtime: &Runtime, size: usize, class: Class, options: &Options) -> Result<Address> {
    let pages = host::map(size).ok_or_else(|| {
        let text = format!("The kernel has no {size} bytes of memory to be pinned.");
        Error::new(Status::TCUDA_ERROR_OUT_OF_MEMORY, text)
    })?;
    let bound = if binds(options.pinned_numa_node) { bind(pages, size, class, options.pinned_numa_node) } else { Ok(()) };
    let registered = bound.and_then(|()| {
        host::touch(pages, size, options.pinned_num_register_threads);
        runtime.host_register(pages, size, PORTABLE)
    });
    registered.map(|()| pages).inspect_err(|_| host::unmap(pages, size))
}

/// Where the kernel forbids it (in some containers), a node that the program asked for is an error, the device's only a wish.
fn bind(pages: Address, size: usize, class: Class, node: Node) -> Result<()> {
    let bound = host::prefer_node(pages, size, table::node_of(class));
    if node == Node::Device { Ok(()) } else { bound.map_err(|error| error.context("pinned_numa_node")) }
}

/// Gives a segment back. Its memory is there as before after an error, but for one that means the loss of a device: then nobody knows.
pub fn give_back(address: Address, segment: &Segment) -> Result<()> {
    let started = Instant::now();
    driver(|runtime| release(runtime, address, segment))?;
    CORE.lock().note_time(started.elapsed(), false);
    Ok(())
}

fn release(runtime: &Runtime, address: Address, segment: &Segment) -> Result<()> {
    if !segment.registered {
        return runtime.free_host(address);
    }
    runtime.host_unregister(address)?;
    host::unmap(address, segment.size);
    Ok(())
}
