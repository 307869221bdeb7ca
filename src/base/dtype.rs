//! Element types, as DLPack names them.

/// DLPack's DLDataType: code, bits of one lane, lanes. TCUDA_DTYPE_FLOAT32 and the like are the usual ones.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types)]
pub struct tcuda_dtype_t {
    /// 0 signed integer, 1 unsigned integer, 2 float, 4 bfloat, 5 complex, 6 bool; 7 and up: the narrow floats of DLPack 1.1.
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

pub type DType = tcuda_dtype_t;

impl DType {
    /// Bytes of one element; types narrower than a byte are rounded up.
    pub fn size(self) -> usize {
        (self.bits as usize * self.lanes as usize).div_ceil(8)
    }
}
