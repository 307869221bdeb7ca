//! Green contexts.

use super::*;

fn resource_at(resource: *const DevResource) -> Result<DevResource, Code> {
    check(resource.cast_mut())?;
    Ok(unsafe { *resource })
}

pub unsafe extern "C" fn cuDeviceGetDevResource(device: i32, resource: *mut DevResource, kind: i32) -> Code {
    call(Slot::cuDeviceGetDevResource, |sim| {
        check(resource)?;
        put(resource, sim.device_resource(device, kind)?)
    })
}

/// Without a place for them, how many groups there could be.
pub unsafe extern "C" fn cuDevSmResourceSplitByCount(
    groups: *mut DevResource,
    count: *mut u32,
    whole: *const DevResource,
    rest: *mut DevResource,
    flags: u32,
    least: u32,
) -> Code {
    call(Slot::cuDevSmResourceSplitByCount, |sim| {
        check(count)?;
        let wanted = if groups.is_null() { u32::MAX } else { unsafe { *count } };
        let (group, made, left) = sim.split_resource(&resource_at(whole)?, wanted, flags, least)?;
        if !groups.is_null() {
            (0..made as usize).try_for_each(|at| put(groups.wrapping_add(at), group))?;
        }
        if !rest.is_null() {
            put(rest, left)?;
        }
        put(count, made)
    })
}

pub unsafe extern "C" fn cuDevResourceGenerateDesc(description: *mut usize, resources: *mut DevResource, count: u32) -> Code {
    call(Slot::cuDevResourceGenerateDesc, |sim| {
        check(description)?;
        // What is not of one split cannot be told here from what is.
        if count != 1 {
            return Err(code::INVALID_RESOURCE_CONFIGURATION);
        }
        put(description, sim.describe_resource(&resource_at(resources)?)?)
    })
}

pub unsafe extern "C" fn cuGreenCtxCreate(context: *mut RawGreenContext, description: usize, device: i32, flags: u32) -> Code {
    call(Slot::cuGreenCtxCreate, |sim| {
        check(context)?;
        put(context, sim.create_green_context(description, device, flags)?)
    })
}

pub unsafe extern "C" fn cuGreenCtxDestroy(context: RawGreenContext) -> Code {
    call(Slot::cuGreenCtxDestroy, |sim| sim.destroy_green_context(context))
}

pub unsafe extern "C" fn cuGreenCtxStreamCreate(stream: *mut RawStream, context: RawGreenContext, flags: u32, priority: i32) -> Code {
    call(Slot::cuGreenCtxStreamCreate, |sim| {
        check(stream)?;
        put(stream, sim.create_green_stream(context, flags, priority)?)
    })
}
