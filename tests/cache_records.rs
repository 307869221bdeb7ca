//! Streams that give each other memory for ever need no more records of blocks than at first. On the simulated device.

use tcuda::base::config;
use tcuda::memory;
use tcuda::stream::{self, Stream};

/// Records that rounds of one block take; with none given back a round takes one or two.
fn records(rounds: usize, one_round: impl Fn(Stream, Stream)) -> u32 {
    let [a, b] = [0; 2].map(|_| stream::create(0, 0).unwrap());
    memory::set_limit(Some(64 << 20), 0).unwrap();
    let before = memory::records_given();
    (0..rounds).for_each(|_| one_round(a, b));
    memory::check(0);
    let taken = memory::records_given() - before;
    memory::set_limit(None, 0).unwrap();
    memory::empty_cache(None).unwrap();
    [a, b].into_iter().for_each(|stream| stream::destroy(stream.raw).unwrap());
    taken
}

#[test]
fn they_come_back() {
    const ROUNDS: usize = 8000;
    config::set("TCUDA_BACKEND", "sim".into());
    config::set("TCUDA_SIM_MEMORY", "2GiB".into());
    for size in [200 << 10, 5 << 20] {
        let handed = records(ROUNDS, |a, b| memory::free_on(memory::allocate(size, 1, a).unwrap(), b).unwrap());
        assert!(handed < 1500, "{handed} records for blocks of {size} bytes freed on another stream");
        let in_turn =
            records(ROUNDS, |a, b| [a, b].into_iter().for_each(|own| memory::free(memory::allocate(size, 1, own).unwrap()).unwrap()));
        assert!(in_turn < 1500, "{in_turn} records for blocks of {size} bytes of two streams");
    }
    // What one stream freed is everybody's by the time that the other one asks, which takes block after block of it.
    let of_everybody = records(ROUNDS / 10, |a, b| {
        // At once, so that each asks for memory.
        let both = [a, b].map(|own| memory::allocate(5 << 20, 1, own).unwrap());
        both.into_iter().for_each(|block| memory::free(block).unwrap());
        for own in [a, b] {
            let blocks = [(); 10].map(|()| memory::allocate(5 << 20, 1, own).unwrap());
            blocks.into_iter().for_each(|block| memory::free(block).unwrap());
        }
    });
    assert!(of_everybody < 1500, "{of_everybody} records for blocks of what is everybody's");
}
