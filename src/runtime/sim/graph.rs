//! Graphs: what a capture has become, made ready, and launched. Each stream of the capture is a stream of its own in every launch, so
//! that what is not ordered goes on in any order, shuffled as all else.

use super::super::table::{Code, RawGraph, RawGraphExec, RawStream, code};
use super::Sim;
use super::capture::{Action, Node, ends_of};
use super::stream::{Point, State, Work, id_of};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

pub struct Exec {
    nodes: Arc<[Node]>,
    /// The ends of its last launch: the next one begins behind them.
    last: Vec<Point>,
}

const GRAPHS: usize = 0x5500_0000_0000;
const EXECS: usize = 0x5600_0000_0000;
const STEP: usize = 16;

fn find<T>(map: &HashMap<u64, T>, handle: usize, base: usize) -> Result<(u64, &T), Code> {
    let id = id_of(handle, base).ok_or(code::INVALID_VALUE)?;
    map.get(&id).map(|found| (id, found)).ok_or(code::INVALID_VALUE)
}

/// cudaGraphExecUpdateResult.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update {
    Done = 0,
    TopologyChanged = 2,
    NodeTypeChanged = 3,
}

impl Sim {
    pub fn add_graph(&'static self, nodes: Vec<Node>) -> RawGraph {
        let mut line = self.scheduler.line();
        let id = line.state.next_id();
        line.state.graphs.insert(id, nodes.into());
        GRAPHS + id as usize * STEP
    }

    pub fn graph_nodes(&'static self, graph: RawGraph) -> Result<Arc<[Node]>, Code> {
        find(&self.scheduler.line().state.graphs, graph, GRAPHS).map(|(_, nodes)| nodes.clone())
    }

    pub fn destroy_graph(&'static self, graph: RawGraph) -> Result<(), Code> {
        let mut line = self.scheduler.line();
        let (id, _) = find(&line.state.graphs, graph, GRAPHS)?;
        line.state.graphs.remove(&id);
        Ok(())
    }

    pub fn instantiate(&'static self, graph: RawGraph, flags: u64) -> Result<RawGraphExec, Code> {
        /// Free on launch, upload, launch from the device, priorities of nodes.
        const KNOWN: u64 = 0b1111;
        let nodes = self.graph_nodes(graph)?;
        if flags & !KNOWN != 0 {
            return Err(code::INVALID_VALUE);
        }
        self.current()?;
        let mut line = self.scheduler.line();
        let id = line.state.next_id();
        line.state.execs.insert(id, Exec { nodes, last: Vec::new() });
        Ok(EXECS + id as usize * STEP)
    }

    /// Launches that are under way go on.
    pub fn destroy_exec(&'static self, exec: RawGraphExec) -> Result<(), Code> {
        let mut line = self.scheduler.line();
        let (id, _) = find(&line.state.execs, exec, EXECS)?;
        line.state.execs.remove(&id);
        Ok(())
    }

    /// The same nodes in the same order, with other arguments. Launches that are under way keep theirs.
    pub fn update_exec(&'static self, exec: RawGraphExec, graph: RawGraph) -> Result<Update, Code> {
        let nodes = self.graph_nodes(graph)?;
        let mut line = self.scheduler.line();
        let (id, found) = find(&line.state.execs, exec, EXECS)?;
        let same_order = |(old, new): (&Node, &Node)| old.after == new.after && old.device == new.device;
        if found.nodes.len() != nodes.len() || !found.nodes.iter().zip(&*nodes).all(same_order) {
            return Ok(Update::TopologyChanged);
        }
        if !found.nodes.iter().zip(&*nodes).all(|(old, new)| old.kind == new.kind) {
            return Ok(Update::NodeTypeChanged);
        }
        if let Some(exec) = line.state.execs.get_mut(&id) {
            exec.nodes = nodes;
        }
        Ok(Update::Done)
    }

    pub fn launch_graph(&'static self, exec: RawGraphExec, raw: RawStream) -> Result<(), Code> {
        let (stream, device) = self.stream_for_work(raw)?;
        let mut line = self.scheduler.line();
        let (id, found) = find(&line.state.execs, exec, EXECS)?;
        let (nodes, last) = (found.nodes.clone(), found.last.clone());
        for node in &*nodes {
            self.devices[node.device].check()?;
        }
        line.state.refuse_captured(stream)?;
        let end = line.state.push_graph(stream, &nodes, last).ok_or(code::INVALID_HANDLE)?;
        if let Some(exec) = line.state.execs.get_mut(&id) {
            exec.last = vec![end];
        }
        self.went_on(&mut line);
        drop(line);
        if self.options.launch_blocking {
            self.wait_for(&[end]);
            self.devices[device].check()?;
        }
        Ok(())
    }
}

impl State {
    /// Behind what the stream has; what the stream gets later comes behind all nodes.
    fn push_graph(&mut self, stream: u64, nodes: &[Node], last: Vec<Point>) -> Option<Point> {
        let now = Instant::now();
        let start = self.push(stream, Work::Nothing, last, now)?;
        let priority = self.stream(stream)?.priority;
        let mut lanes: HashMap<u64, u64> = HashMap::new();
        let mut points: Vec<Point> = Vec::with_capacity(nodes.len());
        for node in nodes {
            const NON_BLOCKING: u32 = 1;
            let lane = *lanes.entry(node.lane).or_insert_with(|| self.add_stream(node.device, NON_BLOCKING, priority, false));
            let mut after: Vec<Point> = node.after.iter().map(|node| points[*node]).collect();
            after.push(start);
            let work = match node.action.clone() {
                Action::Record(event) => {
                    points.push(self.record(event, lane, after, now)?);
                    continue;
                }
                Action::Await(event) => self.events.get(&event).map_or(Work::Nothing, |event| event.awaited(&mut after)),
                Action::Delay(duration) => Work::Delay(duration),
                Action::Host { function, data } => Work::Host { function, data },
                Action::Task(task) => Work::Task(Box::new(move |sim| task(sim))),
                Action::Patient(task) => Work::Patient(Box::new(move |sim| task(sim))),
            };
            points.push(self.push(lane, work, after, now)?);
        }
        let ends = ends_of(nodes).into_iter().map(|node| points[node]).collect();
        let end = self.push(stream, Work::Nothing, ends, now);
        lanes.into_values().for_each(|lane| self.destroy_stream(lane));
        end
    }
}

/// As cudaGraphDebugDotPrint writes it, with what the simulation knows.
pub fn dot(nodes: &[Node]) -> String {
    let mut text = String::from("digraph dot {\nsubgraph cluster_1 {\nlabel=\"graph_1\" graph[style=\"dashed\"];\n");
    for (number, node) in nodes.iter().enumerate() {
        let _ = writeln!(text, "\"graph_1_node_{number}\"[shape=\"rectangle\" label=\"{number}\\n{}\"];", node.kind);
        for before in &node.after {
            let _ = writeln!(text, "\"graph_1_node_{before}\" -> \"graph_1_node_{number}\";");
        }
    }
    text.push_str("}\n}\n");
    text
}
