//! The recorded runs of the examples, as tools/pack_trace.py packs them.

/// A block is allocated, or freed; size and stream are the block's in both.
#[derive(Clone, Copy)]
#[allow(dead_code)] // pinned memory has no streams
pub struct Event {
    pub block: usize,
    pub free: bool,
    pub stream: usize,
    pub size: usize,
}

/// The first `most` events of a run.
pub fn recorded(name: &str, most: usize) -> Vec<Event> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples_c/data").join(format!("{name}.trace"));
    let data = std::fs::read(path).unwrap();
    assert_eq!(&data[..8], b"tcudatr1");
    let mut at = 8;
    let mut number = || {
        let (mut value, mut shift) = (0usize, 0);
        loop {
            let byte = data[at];
            at += 1;
            value |= usize::from(byte & 127) << shift;
            shift += 7;
            if byte < 128 {
                return value;
            }
        }
    };
    let (count, _streams, different) = (number(), number(), number());
    let sizes: Vec<usize> = (0..different).map(|_| number()).collect();
    let (mut events, mut live, mut stream, mut blocks) = (Vec::new(), Vec::new(), 0, 0);
    while events.len() < count.min(most) {
        match number() {
            1 => stream = number(),
            token if token % 2 == 1 => {
                let event = Event { block: blocks, free: false, stream, size: sizes[(token - 3) / 2] };
                blocks += 1;
                live.push(event);
                events.push(event);
            }
            token => {
                let event = live.remove(live.len() - 1 - token / 2);
                events.push(Event { free: true, ..event });
            }
        }
    }
    events
}
