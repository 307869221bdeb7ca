//! Green contexts.

use super::*;

/// CU_GREEN_CTX_DEFAULT_STREAM, without which there is none, and CU_STREAM_NON_BLOCKING, likewise.
const DEFAULT_STREAM: u32 = 1;
const NON_BLOCKING: u32 = 1;

impl Runtime {
    /// All of it or nothing: since CUDA 12.5.
    pub fn has_green_contexts(&self) -> bool {
        self.missing_for_green_contexts().is_none()
    }

    pub fn missing_for_green_contexts(&self) -> Option<&'static str> {
        let t = &self.table;
        let slots = [
            ("cuDeviceGetDevResource", t.cuDeviceGetDevResource.is_some()),
            ("cuDevSmResourceSplitByCount", t.cuDevSmResourceSplitByCount.is_some()),
            ("cuDevResourceGenerateDesc", t.cuDevResourceGenerateDesc.is_some()),
            ("cuGreenCtxCreate", t.cuGreenCtxCreate.is_some()),
            ("cuGreenCtxDestroy", t.cuGreenCtxDestroy.is_some()),
            ("cuGreenCtxStreamCreate", t.cuGreenCtxStreamCreate.is_some()),
        ];
        slots.into_iter().find(|(_, there)| !there).map(|(name, _)| name)
    }

    /// The multiprocessors of a device that a green context may have.
    pub fn multiprocessors(&self, device: i32) -> Result<DevResource> {
        let mut resource = DevResource::NONE;
        call_if_there!(self.cuDeviceGetDevResource(device, &mut resource, DevResource::MULTIPROCESSORS))?;
        Ok(resource)
    }

    /// As few of them as the device can set apart, but no fewer than `least`. None: it cannot set so many apart.
    pub fn split(&self, whole: &DevResource, least: u32) -> Result<Option<DevResource>> {
        let (mut part, mut count) = (DevResource::NONE, 1);
        match call_if_there!(self.cuDevSmResourceSplitByCount(&mut part, &mut count, whole, std::ptr::null_mut(), 0, least)) {
            Err(error) if error.native == code::INVALID_RESOURCE_CONFIGURATION => Ok(None),
            other => other.map(|()| (count == 1).then_some(part)),
        }
    }

    /// Of the current device, which `part` is of.
    pub fn green_context_create(&self, device: i32, mut part: DevResource) -> Result<RawGreenContext> {
        let (mut description, mut context) = (0, 0);
        call_if_there!(self.cuDevResourceGenerateDesc(&mut description, &mut part, 1))?;
        call_if_there!(self.cuGreenCtxCreate(&mut context, description, device, DEFAULT_STREAM))?;
        Ok(context)
    }

    /// Its streams have to be destroyed before. The driver locks nothing: no other call may be about this context.
    pub fn green_context_destroy(&self, context: RawGreenContext) -> Result<()> {
        call_if_there!(self.cuGreenCtxDestroy(context))
    }

    /// Likewise.
    pub fn green_context_stream(&self, context: RawGreenContext) -> Result<RawStream> {
        let mut stream = 0;
        call_if_there!(self.cuGreenCtxStreamCreate(&mut stream, context, NON_BLOCKING, 0))?;
        Ok(stream)
    }
}
