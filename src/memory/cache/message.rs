//! The text of an out-of-memory error: torch's facts and more, and one piece of advice that fits them.

use super::StreamSlot;
use super::block::{self, State};
use super::core::Core;
use crate::memory::hooks::Memory;
use crate::memory::pools::Held;
use crate::memory::stats::{Family, Pool, Stats};
use crate::runtime::monitor::Process;
use crate::stream::{self, Stream};

/// What the text is made of. Sizes in bytes.
pub struct Facts {
    pub device: i32,
    pub requested: usize,
    /// What surely holds it, where that is more for its alignment.
    pub with_alignment: Option<usize>,
    pub memory: Memory,
    /// It was the limit that refused, not the driver.
    pub at_limit: bool,
    /// And that at once, without a look at what could be done.
    pub rejected: bool,
    /// The pluggable allocator that had no memory.
    pub plugin: Option<String>,
    /// The stream is being captured, so nothing was waited for.
    pub capturing: bool,
    pub joins: Joins,
    /// The most that the driver would have to give for it.
    pub from_driver: usize,
    /// That use the device, as far as it is known.
    pub processes: Vec<Process>,
    /// Small and large blocks.
    pub of_pools: [OfPool; 2],
    /// Memory pools of the device, those of graphs too.
    pub memory_pools: Vec<Held>,
    /// What a pool lends would do.
    pub borrows: bool,
    pub largest_free: usize,
    /// Freed, but in use by these streams still; the largest first.
    pub pending: Vec<(String, usize)>,
}

/// Whether free parts are joined by mapping them side by side.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Joins {
    Mapped,
    OptionsForbid,
    /// And why not.
    Never(&'static str),
}

#[derive(Clone, Copy, Default)]
pub struct OfPool {
    pub allocated: usize,
    pub free: usize,
}

impl OfPool {
    pub fn small_and_large(stats: &Stats) -> [OfPool; 2] {
        [Pool::Small, Pool::Large].map(|pool| {
            let stat = |family| stats.get(family, pool).current as usize;
            let free = stat(Family::ReservedBytes).saturating_sub(stat(Family::ActiveBytes));
            OfPool { allocated: stat(Family::AllocatedBytes), free }
        })
    }
}

impl Core {
    /// By stream, what is freed and not past; the most first.
    pub fn in_use_by_streams(&self) -> Vec<(String, usize)> {
        let mut bytes = vec![0; self.slots.len()];
        for pending in &self.pending {
            let behind = |(slot, count): &&(StreamSlot, u32)| !self.slots[*slot as usize].known.covers(*count);
            for (slot, _) in pending.uses.iter().filter(behind) {
                bytes[*slot as usize] += block::at(pending.block).size();
            }
        }
        // Two: one stream, and what belongs to none. A single stream is never asked how far it is.
        if self.slots.len() > 2 {
            for area in self.areas.values() {
                let free = block::chain(area.first).filter(|id| block::at(*id).state() == State::Free);
                free.filter(|id| !self.is_past(*id)).map(block::at).for_each(|block| bytes[block.owner() as usize] += block.size());
            }
        }
        let name = |slot: usize| format!("0x{:x}", stream::handle_of(Stream { device: self.device, raw: self.slots[slot].key.raw }));
        let mut found: Vec<_> =
            bytes.into_iter().enumerate().filter(|(_, bytes)| *bytes > 0).map(|(at, bytes)| (name(at), bytes)).collect();
        found.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        found
    }
}

/// Of pools, streams and processes: more would make the text long and say little.
const MOST: usize = 4;

impl Facts {
    fn unused(&self) -> usize {
        self.of_pools.iter().map(|pool| pool.free).sum()
    }

    /// What neither is free nor belongs to this cache.
    fn others(&self) -> usize {
        let Memory { total, free, reserved, .. } = self.memory;
        free.map_or(0, |free| total.saturating_sub(free).saturating_sub(reserved))
    }

    fn of_this_process(&self) -> Option<usize> {
        let own = self.processes.iter().find(|process| process.pid == std::process::id())?;
        own.bytes.map(|bytes| bytes as usize).filter(|bytes| *bytes > 0)
    }

    /// Number and bytes, the largest first, of those whose bytes are known.
    fn other_processes(&self) -> Vec<(u32, usize)> {
        let known = self.processes.iter().filter_map(|process| Some((process.pid, process.bytes.filter(|bytes| *bytes > 0)? as usize)));
        let mut others: Vec<_> = known.filter(|(pid, _)| *pid != std::process::id()).collect();
        others.sort_by_key(|(pid, bytes)| (std::cmp::Reverse(*bytes), *pid));
        others
    }

    /// A sentence for each, as torch has them. None: nobody tells of any.
    fn of_other_processes(&self) -> Option<String> {
        let others = self.other_processes();
        let sentence = |(pid, bytes): &(u32, usize)| format!("Process {pid} has {} memory in use. ", size_text(*bytes));
        let mut text: String = others.iter().take(MOST).map(sentence).collect();
        let more: usize = others.iter().skip(MOST).map(|(_, bytes)| bytes).sum();
        if more > 0 {
            text += &format!("{} more have {} in use. ", others.len() - MOST, size_text(more));
        }
        // In a container they may have the host's numbers, and this one too.
        if self.processes.iter().all(|process| process.pid != std::process::id()) {
            text += "This process may be among them, by another number. ";
        }
        (!others.is_empty()).then_some(text)
    }

    pub fn text(&self) -> String {
        let Memory { total, free, allocated, reserved, limit } = self.memory;
        let mut text = format!("CUDA out of memory. Tried to allocate {}. ", size_text(self.requested));
        if let Some(bytes) = self.with_alignment {
            text += &format!("With its alignment that may take {}. ", size_text(bytes));
        }
        if self.rejected {
            text += "Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. ";
        }
        text += &format!("GPU {} has a total capacity of {}", self.device, size_text(total));
        text += &free.map_or_else(|| ". ".into(), |free| format!(" of which {} is free. ", size_text(free)));
        if let Some(processes) = self.of_other_processes() {
            text += &processes;
        } else if self.others() > 0 {
            text += &format!("Other processes, other libraries and the driver use {}. ", size_text(self.others()));
        }
        if let Some(bytes) = self.of_this_process() {
            text += &format!("Including memory that is not tcuda's, this process has {} memory in use. ", size_text(bytes));
        }
        if let Some(limit) = limit {
            text += &format!("{} allowed; {} is reserved. ", size_text(limit), size_text(reserved));
        }
        if let Some(plugin) = &self.plugin {
            text += &format!("It was the pluggable allocator {plugin} that had none, and returned NULL. ");
        }
        text += &format!(
            "Of the allocated memory {} is allocated by tcuda, and {} is reserved by tcuda but unallocated; the largest free block has {}. ",
            size_text(allocated),
            size_text(self.unused()),
            size_text(self.largest_free)
        );
        let [small, large] = self.of_pools.map(|pool| format!("{} allocated and {} free", size_text(pool.allocated), size_text(pool.free)));
        text += &format!("Blocks up to 1 MiB: {small}; larger ones: {large}. ");
        for Held { id, used, free, .. } in self.memory_pools.iter().take(MOST) {
            text += &format!("Of that the memory pool {id} has {} allocated and {} free. ", size_text(*used), size_text(*free));
        }
        if !self.pending.is_empty() {
            let streams: Vec<_> =
                self.pending.iter().take(MOST).map(|(stream, bytes)| format!("{} by stream {stream}", size_text(*bytes))).collect();
            let more = if self.pending.len() > MOST { ", and others" } else { "" };
            text += &format!("Freed but still in use: {}{more}. ", streams.join(", "));
        }
        text + &self.advice()
    }

    /// The one thing that would help most.
    fn advice(&self) -> String {
        let Memory { total, allocated, reserved, limit, .. } = self.memory;
        let pieces = self.unused() >= self.requested;
        if self.requested > total && self.plugin.is_none() {
            return "The device is too small for this, whatever is freed.".into();
        }
        let of_device = self.unused() - self.memory_pools.iter().map(|pool| pool.free).sum::<usize>().min(self.unused());
        if self.capturing && of_device >= self.requested {
            return format!(
                "A graph has memory of its own, and a stream that is being captured waits for nothing: tcuda_empty_cache before the capture \
                 gives {} back that is free.",
                size_text(of_device)
            );
        }
        if self.capturing && !self.pending.is_empty() {
            return "A stream that is being captured waits for nothing: allocate before the capture, or let the other streams end first."
                .into();
        }
        if let Some(free) = self.memory.free
            && !self.at_limit
            && self.plugin.is_none()
            && free >= self.from_driver
        {
            return format!(
                "The driver refused, although {} is free: another process may have taken it meanwhile, or this one is at a limit of its own, \
                 of open files (ulimit -n), addresses (ulimit -v) or mappings (vm.max_map_count).",
                size_text(free)
            );
        }
        if let Some((stream, bytes)) = self.pending.first()
            && bytes.saturating_add(self.largest_free) >= self.requested
        {
            return format!(
                "Let stream {stream} end its work (tcuda_stream_synchronize), or free its blocks on the stream that allocates next \
                 (tcuda_free_cached_on)."
            );
        }
        if let Some(Held { id, free, .. }) = self.memory_pools.iter().filter(|pool| pool.gives).max_by_key(|pool| pool.free)
            && *free >= self.requested
        {
            let or_lends = if self.borrows { ", and with use_on_oom the pool lends it" } else { "" };
            return format!("The memory pool {id} has {} that nobody uses: tcuda_mem_pool_trim gives it back{or_lends}.", size_text(*free));
        }
        match self.joins {
            Joins::OptionsForbid if pieces => {
                return "More than this is free, but in pieces: expandable_segments:True in TCUDA_ALLOC_CONF lets them be used together."
                    .into();
            }
            Joins::Never(why) if pieces => {
                return format!("More than this is free, but in pieces, and {why}: allocate what is large and stays before the rest.");
            }
            _ => {}
        }
        if let Some(limit) = limit
            && self.at_limit
        {
            let why = match self.requested {
                requested if requested > limit => "asks for more than".into(),
                requested if requested > limit.saturating_sub(reserved) => "would pass".into(),
                _ => format!("takes up to {} from the driver, which would pass", size_text(self.from_driver)),
            };
            return format!(
                "The request {why} the limit of {}: tcuda_set_memory_limit, tcuda_set_per_process_memory_fraction or \
                 per_process_memory_fraction in TCUDA_ALLOC_CONF raises it.",
                size_text(limit)
            );
        }
        if self.plugin.is_some() {
            return "The allocator would have to have more; else free some of what is in use, or ask for less.".into();
        }
        if self.others() > allocated && self.others() >= self.requested {
            let is_most = |bytes: usize| bytes > self.others() / 2;
            if self.of_this_process().is_some_and(|bytes| is_most(bytes.saturating_sub(self.memory.reserved))) {
                return "Most of the device is taken by this process, but not by tcuda: other libraries in it have caches of their own."
                    .into();
            }
            return match self.other_processes().first() {
                Some((pid, bytes)) if is_most(*bytes) => format!("Most of the device is taken by others, the most by process {pid}."),
                _ => "Most of the device is taken by others: nvidia-smi shows the processes.".into(),
            };
        }
        if pieces {
            return "More than this is free, but apart: blocks in use lie between. Allocate what stays long before the rest.".into();
        }
        if allocated == 0 {
            return "Nothing is in use: the request, rounded to whole pieces of the driver, is more than there is.".into();
        }
        "Blocks in use fill the device: free some or ask for less. tcuda_register_pressure_callback lets a program's own caches give way."
            .into()
    }
}

/// torch's way to write sizes.
pub fn size_text(bytes: usize) -> String {
    let scaled = |shift: u32, unit: &str| format!("{:.2} {unit}", bytes as f64 / (1u64 << shift) as f64);
    match bytes {
        0..=1024 => format!("{bytes} bytes"),
        _ if bytes <= 1 << 20 => scaled(10, "KiB"),
        _ if bytes <= 1 << 30 => scaled(20, "MiB"),
        _ => scaled(30, "GiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;
    const GIB: usize = 1 << 30;

    #[test]
    fn sizes_read_as_torchs() {
        assert_eq!(size_text(1024), "1024 bytes");
        assert_eq!(size_text(1025), "1.00 KiB");
        assert_eq!(size_text(20 << 20), "20.00 MiB");
        assert_eq!(size_text((3 << 30) / 2), "1.50 GiB");
    }

    /// A device of 16 GiB with 14 GiB in use, 1 GiB of it large and free, where 2 GiB more are asked for.
    fn full() -> Facts {
        Facts {
            device: 1,
            requested: 2 * GIB,
            with_alignment: None,
            memory: Memory { total: 16 * GIB, free: Some(GIB / 2), allocated: 13 * GIB, reserved: 14 * GIB, limit: None },
            at_limit: false,
            rejected: false,
            plugin: None,
            capturing: false,
            joins: Joins::Mapped,
            from_driver: 2 * GIB,
            processes: Vec::new(),
            memory_pools: Vec::new(),
            borrows: true,
            of_pools: [OfPool { allocated: GIB, free: 0 }, OfPool { allocated: 12 * GIB, free: GIB }],
            largest_free: 100 * MIB,
            pending: Vec::new(),
        }
    }

    #[test]
    fn the_facts_stand_in_torchs_order() {
        let text = full().text();
        let facts = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 16.00 GiB of which 512.00 MiB is free. \
                     Other processes, other libraries and the driver use 1.50 GiB. Of the allocated memory 13.00 GiB is allocated by tcuda, \
                     and 1024.00 MiB is reserved by tcuda but unallocated; the largest free block has 100.00 MiB. Blocks up to 1 MiB: \
                     1024.00 MiB allocated and 0 bytes free; larger ones: 12.00 GiB allocated and 1024.00 MiB free. ";
        assert!(text.starts_with(facts), "{text}");
        let unknown = Facts { memory: Memory { free: None, limit: Some(15 * GIB), ..full().memory }, at_limit: true, ..full() }.text();
        assert!(unknown.contains("capacity of 16.00 GiB. 15.00 GiB allowed; 14.00 GiB is reserved. Of"), "{unknown}");
        let aligned = Facts { requested: 1000, with_alignment: Some(GIB), ..full() }.text();
        assert!(aligned.contains("Tried to allocate 1000 bytes. With its alignment that may take 1024.00 MiB. GPU"), "{aligned}");
        let rejected = Facts { at_limit: true, rejected: true, ..full() }.text();
        assert!(rejected.contains("allocate 2.00 GiB. Allocation was preemptively rejected because it would exceed"), "{rejected}");
        let pending: Vec<_> = (0..6).map(|at| (format!("0x10{at}"), (6 - at) * MIB)).collect();
        let text = Facts { pending, ..full() }.text();
        assert!(text.contains("Freed but still in use: 6.00 MiB by stream 0x100, 5.00 MiB by stream 0x101, "), "{text}");
        assert!(text.contains("3.00 MiB by stream 0x103, and others. "), "{text}");
    }

    #[test]
    fn processes_stand_where_torch_has_them() {
        let with = |processes: Vec<(u32, Option<u64>)>| {
            let processes = processes.into_iter().map(|(pid, bytes)| Process { pid, bytes }).collect();
            Facts { processes, ..full() }.text()
        };
        let (own, gib) = (std::process::id(), Some(1u64 << 30));
        let lump = "Other processes, other libraries and the driver use 1.50 GiB. ";
        let text = with(vec![(7, gib), (own, Some(14 << 30)), (9, Some(3 << 29))]);
        let all = "is free. Process 9 has 1.50 GiB memory in use. Process 7 has 1024.00 MiB memory in use. Including memory that is not tcuda's, \
                   this process has 14.00 GiB memory in use. Of";
        assert!(text.contains(all) && !text.contains(lump), "{text}");
        let text = with((1..8).map(|pid| (pid, Some(u64::from(pid) << 20))).chain([(own, None)]).collect());
        assert!(text.contains("Process 4 has 4.00 MiB memory in use. 3 more have 6.00 MiB in use. Of"), "{text}");
        // Only this one, and those whose memory is not told.
        let text = with(vec![(own, gib), (7, None), (8, Some(0))]);
        assert!(text.contains(&format!("{lump}Including")) && !text.contains("Process 7"), "{text}");
        let text = with(vec![(7, gib)]);
        assert!(text.contains("in use. This process may be among them, by another number. Of"), "{text}");
    }

    #[test]
    fn each_case_has_its_advice() {
        let limited = |bytes| Memory { limit: Some(bytes), ..full().memory };
        let pieces = || Facts { requested: GIB / 2, ..full() };
        let of_process = |pid, bytes| vec![Process { pid, bytes: Some(bytes as u64) }];
        let pool = |id, used, free, gives| Held { id, used, free, gives };
        let foreign = Memory { free: Some(0), allocated: GIB, reserved: GIB, ..full().memory };
        let pending = vec![("0x2a".to_string(), 2 * GIB)];
        let cases = [
            (full(), "Blocks in use fill the device"),
            (Facts { requested: 17 * GIB, ..full() }, "too small for this"),
            (Facts { capturing: true, pending: pending.clone(), ..full() }, "being captured"),
            (Facts { capturing: true, pending: pending.clone(), ..pieces() }, "before the capture gives 1024.00 MiB back"),
            (Facts { capturing: true, memory_pools: vec![pool(1, 0, GIB, false)], ..pieces() }, "but apart"),
            (Facts { capturing: true, ..full() }, "Blocks in use fill the device"),
            (Facts { pending: pending.clone(), ..full() }, "Let stream 0x2a end"),
            (Facts { pending: vec![("0x2a".into(), MIB)], ..full() }, "Blocks in use fill the device"),
            (
                Facts { memory_pools: vec![pool(3, 0, GIB, true), pool(4, GIB, 0, true)], ..pieces() },
                "The memory pool 3 has 1024.00 MiB that nobody uses: tcuda_mem_pool_trim gives it back, and with use_on_oom",
            ),
            (Facts { memory_pools: vec![pool(3, 0, GIB, true)], borrows: false, ..pieces() }, "tcuda_mem_pool_trim gives it back."),
            (Facts { memory_pools: vec![pool(3, 0, GIB, false), pool(4, GIB, 0, true)], ..pieces() }, "but apart"),
            (Facts { joins: Joins::OptionsForbid, ..pieces() }, "expandable_segments:True"),
            (Facts { joins: Joins::Never("nobody joins them"), ..pieces() }, "in pieces, and nobody joins them: allocate"),
            (Facts { joins: Joins::OptionsForbid, ..full() }, "Blocks in use fill the device"),
            (pieces(), "but apart"),
            (Facts { memory: limited(14 * GIB), at_limit: true, ..full() }, "would pass the limit of 14.00 GiB"),
            (Facts { memory: limited(GIB), at_limit: true, ..full() }, "asks for more than the limit of 1024.00 MiB"),
            (Facts { memory: limited(15 * GIB), ..full() }, "Blocks in use fill the device"),
            (Facts { memory: foreign, ..full() }, "taken by others: nvidia-smi"),
            (Facts { memory: foreign, processes: of_process(1, GIB), ..full() }, "taken by others: nvidia-smi"),
            (Facts { memory: foreign, processes: of_process(1, 9 * GIB), ..full() }, "taken by others, the most by process 1."),
            (Facts { memory: foreign, processes: of_process(std::process::id(), 9 * GIB), ..full() }, "by this process, but not by tcuda"),
            (Facts { from_driver: GIB / 2, ..full() }, "The driver refused, although 512.00 MiB is free"),
            (Facts { from_driver: GIB / 2, memory: limited(15 * GIB), at_limit: true, ..full() }, "would pass the limit"),
            (Facts { from_driver: GIB / 2, plugin: Some("own".into()), ..full() }, "The allocator would have to have more"),
            (Facts { requested: 17 * GIB, plugin: Some("own".into()), memory: foreign, ..full() }, "The allocator would have to have more"),
            (
                Facts {
                    requested: 1,
                    from_driver: 2 * MIB,
                    memory: limited(14 * GIB + MIB),
                    at_limit: true,
                    of_pools: Default::default(),
                    ..full()
                },
                "takes up to 2.00 MiB from the driver, which would pass the limit of 14.00 GiB",
            ),
            (
                Facts {
                    from_driver: 17 * GIB,
                    memory: Memory { free: Some(16 * GIB), allocated: 0, reserved: 0, ..foreign },
                    of_pools: Default::default(),
                    ..full()
                },
                "Nothing is in use",
            ),
        ];
        for (facts, part) in cases {
            assert!(facts.advice().contains(part), "{}", facts.text());
        }
    }
}
