//! The generators that a graph draws from: before each replay they say where it begins.

use super::capture;
use crate::base::Result;
use crate::memory::captures;
use crate::random::Generator;
use crate::random::captured::InGraph;
use crate::stream::Stream;
use std::sync::Arc;

pub struct Drawn {
    pub generator: Arc<Generator>,
    pub place: Arc<InGraph>,
}

/// For the room of random numbers: what the capture of a stream has of a generator.
pub fn of_capture(stream: Stream, generator: &Arc<Generator>) -> Result<Option<Arc<InGraph>>> {
    match captures::capture_of(stream)?.and_then(capture::graph_of) {
        Some(graph) => graph.draws_from(generator).map(Some),
        None => Ok(None),
    }
}

/// Does a launch with all generators in hand, which go on if it succeeds. They are in one order, whatever the graph.
pub fn replay(drawn: &[Drawn], stream: Stream, launch: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut advances = Vec::with_capacity(drawn.len());
    for Drawn { generator, place } in drawn {
        let advance = generator.advance(place.drawn())?;
        place.write(advance.state(), stream)?;
        advances.push(advance);
    }
    launch()?;
    advances.into_iter().for_each(|advance| advance.commit());
    Ok(())
}
