//! A sum that is written on from device to device, so that every link carries each byte once.

use super::choice::WINDOW;
use super::circle::Circle;
use super::ring::Ring;
use super::spread::cut;
use crate::base::Result;
use crate::runtime::kernels::comm::{Move, Segment, TILE};
use crate::runtime::kernels::element::Element;
use crate::stream::Stream;
use crate::tensor;

/// The destination's own input goes to the next device, which adds its own and hands the sum on; the last one writes it to the segment's one.
/// `streams` are those of the inputs, in the order of the sum; the first is the circle's centre. False: no kernel was enqueued, since
/// kernels cannot wait for each other, partial sums would be rounded, tensors are not aligned, a device has several inputs, or no memory
/// for what comes to it.
pub fn sum(circle: &mut Circle, streams: &[Stream], element: Element, segment: &Segment) -> Result<bool> {
    let is_once = |at: usize| !streams[..at].iter().any(|stream| stream.device == streams[at].device);
    let is_aligned = |address: &usize| address.is_multiple_of(16);
    let is_fit = (0..streams.len()).all(is_once) && segment.many.iter().chain([&segment.one]).all(is_aligned);
    let Some(adding) = Move::adding(element).filter(|_| is_fit) else { return Ok(false) };
    let path = [streams, &[circle.centre]].concat();
    // Given back when the ring is no more, which waits for its kernels if it does not come to its end.
    let mut windows = Vec::with_capacity(streams.len() - 1);
    let mut ring = Ring::new(circle, path, segment.size)?;
    if !ring.has_counters() {
        return Ok(false);
    }
    let window = ring.chunk(segment.size).min(WINDOW);
    for stream in &streams[1..] {
        let Some(memory) = tensor::bytes_if_there(*stream, segment.size.min(window))? else { return Ok(false) };
        windows.push(memory);
    }
    if segment.size > window && !ring.use_window(circle, window)? {
        return Ok(false);
    }
    ring.begin(circle)?;
    for start in (0..segment.tiles()).step_by(window / TILE) {
        let chunk = cut(std::slice::from_ref(segment), start, (start + window / TILE).min(segment.tiles()));
        ring.add_chunk(circle, |at| {
            let to = |one: usize| windows.get(at).map_or(one, |window| window.view.address);
            let part = |Segment { one, many, size }: &Segment| match at.checked_sub(1) {
                None => Segment { one: many[0], many: vec![to(*one)], size: *size },
                Some(before) => Segment { one: to(*one), many: vec![windows[before].view.address, many[at]], size: *size },
            };
            (if at == 0 { Move::COPY } else { adding }, chunk.iter().map(part).collect())
        })?;
    }
    ring.close(circle)?;
    Ok(true)
}
