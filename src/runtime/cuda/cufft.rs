//! cuFFT: plans whose work areas come from outside. Programs execute them.

use super::bind::functions;
use super::component::Component;
use super::library::file_of;
use super::search::FFT;
use crate::base::Result;
use crate::runtime::{Address, RawStream, Runtime};
use once_cell::sync::OnceCell;
use std::path::PathBuf;

/// cufftHandle.
pub type Plan = i32;

functions! {
    cufftCreate(*mut Plan);
    cufftDestroy(Plan);
    cufftSetAutoAllocation(Plan, i32);
    cufftMakePlanMany64(Plan, i32, *mut i64, *mut i64, i64, i64, *mut i64, i64, i64, i32, i64, *mut usize);
    cufftSetStream(Plan, RawStream);
    cufftSetWorkArea(Plan, Address);
}

static COMPONENT: Component = Component {
    name: "cuFFT",
    wanted: &FFT,
    package: "nvidia-cufft",
    answers: &[
        (1, "CUFFT_INVALID_PLAN"),
        (2, "CUFFT_ALLOC_FAILED"),
        (3, "CUFFT_INVALID_TYPE"),
        (4, "CUFFT_INVALID_VALUE"),
        (5, "CUFFT_INTERNAL_ERROR"),
        (6, "CUFFT_EXEC_FAILED"),
        (7, "CUFFT_SETUP_FAILED"),
        (8, "CUFFT_INVALID_SIZE"),
        (9, "CUFFT_UNALIGNED_DATA"),
        (11, "CUFFT_INVALID_DEVICE"),
        (13, "CUFFT_NO_WORKSPACE"),
        (14, "CUFFT_NOT_IMPLEMENTED"),
        (16, "CUFFT_NOT_SUPPORTED"),
    ],
    no_memory: 2,
};

/// Elements from one to the next in a batch of arrays. `embed` all 0: packed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    pub embed: [i64; 3],
    pub stride: i64,
    pub distance: i64,
}

/// A transform: all that a plan depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Transform {
    /// cufftType.
    pub kind: i32,
    pub rank: usize,
    pub n: [i64; 3],
    pub batch: i64,
    pub input: Layout,
    pub output: Layout,
}

pub struct Cufft {
    functions: Functions,
    pub file: PathBuf,
}

/// Found at the first call. A failure is not kept.
pub fn open(runtime: &Runtime) -> Result<&'static Cufft> {
    static FOUND: OnceCell<Cufft> = OnceCell::new();
    FOUND.get_or_try_init(|| {
        COMPONENT.find(runtime, |library, name| {
            let functions = Functions::of(library, name)?;
            Ok(Cufft { file: file_of(functions.cufftCreate as usize).unwrap_or_else(|| name.into()), functions })
        })
    })
}

impl Cufft {
    /// A plan for the current device, and the bytes of its work area.
    pub fn make(&self, transform: &Transform) -> Result<(Plan, usize)> {
        let f = &self.functions;
        let mut plan = 0;
        COMPONENT.check("cufftCreate", unsafe { (f.cufftCreate)(&mut plan) })?;
        let make = || {
            COMPONENT.check("cufftSetAutoAllocation", unsafe { (f.cufftSetAutoAllocation)(plan, 0) })?;
            let Transform { mut n, mut input, mut output, .. } = *transform;
            let embed = |layout: &mut Layout| match layout.embed {
                [0, 0, 0] => std::ptr::null_mut(),
                _ => layout.embed.as_mut_ptr(),
            };
            let mut size = 0;
            COMPONENT.check("cufftMakePlanMany64", unsafe {
                (f.cufftMakePlanMany64)(
                    plan,
                    transform.rank as i32,
                    n.as_mut_ptr(),
                    embed(&mut input),
                    input.stride,
                    input.distance,
                    embed(&mut output),
                    output.stride,
                    output.distance,
                    transform.kind,
                    transform.batch,
                    &mut size,
                )
            })?;
            Ok((plan, size))
        };
        // The first error is the one to tell.
        make().inspect_err(|_| drop(self.destroy(plan)))
    }

    /// Its device is current, and nothing that it was executed for is under way.
    pub fn destroy(&self, plan: Plan) -> Result<()> {
        COMPONENT.check("cufftDestroy", unsafe { (self.functions.cufftDestroy)(plan) })
    }

    pub fn set_stream(&self, plan: Plan, stream: RawStream) -> Result<()> {
        COMPONENT.check("cufftSetStream", unsafe { (self.functions.cufftSetStream)(plan, stream) })
    }

    pub fn set_work_area(&self, plan: Plan, address: Address) -> Result<()> {
        COMPONENT.check("cufftSetWorkArea", unsafe { (self.functions.cufftSetWorkArea)(plan, address) })
    }
}
